"""Fine-tune a QDQ model: import, train, write back."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, cast, overload

import torch

from onnxqat import notebook_progress
from onnxqat.bridge.importing.frozen_constants import freeze_constants
from onnxqat.data.preprocess import Preprocess
from onnxqat.graph import io
from onnxqat.metrics import ScoreSource
from onnxqat.runtime import broken_model
from onnxqat.training import schedules
from onnxqat.training.callbacks import batchnorm_statistics as batch_norms
from onnxqat.training.callbacks._found import CallbackSource
from onnxqat.training.config import CheckpointConfig, OptimizerConfig, ScheduleConfig, ScoreConfig
from onnxqat.training.execution.execution import Execution
from onnxqat.training.fit import fit
from onnxqat.training.loop.loop import Report
from onnxqat.training.loop.step import Augment
from onnxqat.training.objective._found import LossSource
from onnxqat.training.optim import optimizers
from onnxqat.training.options import Options
from onnxqat.training.result import FinetuneResult
from onnxqat.training.run import run

P = ParamSpec("P")

__all__ = ["FinetuneResult", "Report", "finetune", "fit", "freeze_constants"]


class _Finetune(Protocol[P]):
    """:func:`finetune` by the kind of its model; its other parameters are stated once, where it is defined."""

    @overload
    def __call__(self, model: io.ModelT, *args: P.args, **kwargs: P.kwargs) -> FinetuneResult[io.ModelT]: ...

    @overload
    def __call__(self, model: str | os.PathLike[str], *args: P.args, **kwargs: P.kwargs) -> FinetuneResult[Path]: ...


def _by_kind(function: Callable[Concatenate[io.ModelSource, P], FinetuneResult[Any]]) -> _Finetune[P]:
    return cast("_Finetune[P]", function)


@_by_kind
@notebook_progress.shown("train")
@broken_model.guard("model")
def finetune(
    model: io.ModelSource,
    data: Any,
    *,
    labels: Any = None,
    preprocess: str | Preprocess | None = None,
    teacher: Any = None,
    method: str = "lsq",
    epochs: int | None = None,
    max_steps: int | None = None,
    batch_size: int | None = None,
    limit: int | None = None,
    optimizer: str | optimizers.Make | OptimizerConfig = "adamw",
    learning_rate: float | None = None,
    schedule: str | schedules.Factor | ScheduleConfig = "cosine",
    loss: LossSource | None = None,
    batch_norm: batch_norms.Choice = "auto",
    augment: Augment | None = None,
    callbacks: Sequence[CallbackSource] = (),
    score: ScoreSource | ScoreConfig | None = None,
    execution: Execution | None = None,
    checkpoints: str | os.PathLike[str] | CheckpointConfig | None = None,
    seed: int = 0,
    device: str | torch.device | None = None,
    output: str | os.PathLike[str] | None = None,
    progress: Callable[[Report], None] | None = None,
) -> FinetuneResult[Any]:
    """Train weights and scales of a QDQ model through its quantizers and write them back into it.

    Learns from labels, from a teacher (knowledge distillation), or from both (`loss` mixes them). With neither, the
    teacher is the float model that the file was made from, where its file is found
    (:mod:`onnxqat.training.objective.original`), else the model itself with its quantizers off; a hundred unlabelled
    samples are enough.

    Args:
        model: QDQ model: path, onnx.ModelProto, onnx_ir.Model or onnx_graphsurgeon.Graph; it is not changed.
        data: what :func:`onnxqat.training.data.batches.make` takes: arrays, a path, an iterable or a callable of batches.
        labels: labels of array data; or a file or folder of labels for a `score` such as ``"coco-map"``.
        preprocess: preprocessing line for a folder of images, or the path of a file with a function.
        teacher: what is imitated: a float model, a module that takes the same inputs, or a list of them; inner tensors
            too, with a :class:`onnxqat.training.config.DistillationConfig`.
        method: how scales learn: a name of ``onnxqat methods list``, or the path of a file.
        epochs: passes over the data; None, where `max_steps` is not given either: so many that there are about 400
            steps, at most 20 and at most 5,000 samples, at least 1 (:mod:`onnxqat.training.optim.run_length`).
        max_steps: end after so many steps.
        batch_size: samples in a batch, where the model does not prescribe it; None: 32, or 8 where there are fewer than
            1,000 samples and neither `epochs` nor `max_steps` is given.
        limit: read at most so many samples, the first ones, those that are held out among them; None: all.
        optimizer: name of a class of ``torch.optim``; a function of parameter groups that returns an optimizer; or an
            :class:`onnxqat.training.config.OptimizerConfig`, with weight decay, rates of single tensors, a moving average.
        learning_rate: of weights and biases; None: :func:`onnxqat.training.optim.learning_rates.default`.
        schedule: how learning rates fall: ``"cosine"``, ``"linear"``, ``"constant"``, ``"step"``, ``"multistep"`` or
            ``"plateau"``; a function of step and length of the run that returns a factor; or a
            :class:`onnxqat.training.config.ScheduleConfig`, with the warm-up and the options of the schedule.
        loss: None: ``Loss()``; or a function of outputs, labels and the teacher's outputs that returns a scalar, also as
            the path of a file with a function ``loss``.
        batch_norm: statistics of BatchNormalization (:mod:`onnxqat.training.callbacks.batchnorm_statistics`): ``"live"``
            ones of the batch, ``"frozen"`` ones of the file, or ``"auto"``: live where ``insert-qdq`` kept it for
            training, frozen in files of other tools.
        augment: changes the inputs of a batch (dict from name to tensor), for student and teacher alike.
        callbacks: called at points of the run, in this order: those of ``onnxqat/training/callbacks``, such as
            ``Progressive``, ``Dampening``, ``Freezing`` and ``JsonLog``, and your own
            (:class:`onnxqat.training.callbacks.callback.Callback`), also as paths of files.
        score: score by which the best weights are chosen, higher is better, measured before the first step and after
            each epoch on the file that the module would be written as: a metric (:func:`onnxqat.metrics.names`) on
            samples that are held out of training, a function of a :class:`onnxqat.metrics.Predictor`, also by its place
            ``"module:function"``; or a :class:`onnxqat.training.config.ScoreConfig`, for a function of the module, scores
            every few steps, and early stopping. None: minus the loss on samples that are held out
            (:mod:`onnxqat.training.data.holdout`); the last epoch that has more than half of the best gain is written,
            or the start where none has one larger than its standard error over the samples.
        execution: precision, accumulation, compilation, memory, arithmetic and processes.
        checkpoints: folder for ``last.safetensors`` and ``best.safetensors``; or a
            :class:`onnxqat.training.config.CheckpointConfig`, to go on from them, and for steps that are not finite.
        seed: of the order of samples and of torch's random generator, which is as before afterwards.
        device: None: CUDA where there is one.
        output: where to write the model; needed when `model` is a path.
        progress: called after each step.

    Returns:
        The result; ``result.model`` is the tuned model.

    Raises:
        ModelError: ``model-not-quantized`` when there is no quantizer; the file's errors.
        UsageError: ``option-invalid``, ``name-unknown``.
        DataError: what is wrong with the data.
        QatError: ``training-diverged``, ``checkpoint-mismatch``, ``distributed-failed``.
    """
    options = {name: value for name, value in locals().items() if name not in ("model", "data")}
    return run(model, data, Options(**options))
