"""Fine-tune a QDQ model: import, train, write back."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from onnxqat.bridge.importing.frozen_constants import freeze_constants
from onnxqat.data.preprocess import Preprocess
from onnxqat.graph import io
from onnxqat.metrics import ScoreSource
from onnxqat.runtime import broken_model
from onnxqat.training import schedules
from onnxqat.training.callbacks import batchnorm_statistics as batch_norms
from onnxqat.training.callbacks.callback import Callback
from onnxqat.training.distributed.join import TIMEOUT
from onnxqat.training.execution.execution import Precision
from onnxqat.training.fit import fit
from onnxqat.training.loop.loop import Report
from onnxqat.training.loop.step import Augment
from onnxqat.training.objective.features import Features, Names
from onnxqat.training.objective.losses import Objective
from onnxqat.training.optim import optimizers
from onnxqat.training.options import Options
from onnxqat.training.result import FinetuneResult
from onnxqat.training.run import run

__all__ = ["FinetuneResult", "Report", "finetune", "fit", "freeze_constants"]


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
    optimizer: str | optimizers.Make = "adamw",
    optimizer_options: Mapping[str, Any] | None = None,
    learning_rate: float | None = None,
    scale_learning_rate: float | None = None,
    learning_rates: Mapping[str, float] | None = None,
    weight_decay: float = 0.0,
    warmup_steps: int | None = None,
    schedule: str | schedules.Factor = "cosine",
    schedule_options: Mapping[str, Any] | None = None,
    loss: Objective | None = None,
    features: Features | Names | None = None,
    ema: float | None = None,
    gradient_norm: float | None = None,
    gradient_value: float | None = None,
    progressive: Sequence[int] | None = None,
    dampening: float | None = None,
    freezing: float | None = None,
    batch_norm: batch_norms.Choice = "auto",
    reestimate_batch_norm: int | None = None,
    grad_bits: int | None = None,
    arithmetic: str | None = None,
    precision: Precision = "float32",
    accumulate: int = 1,
    compile: bool | str = False,
    channels_last: bool = False,
    recompute: bool | int = False,
    rematerialize: bool | None = None,
    augment: Augment | None = None,
    callbacks: Sequence[Callback] = (),
    evaluate: Callable[[nn.Module], float] | None = None,
    score: ScoreSource | None = None,
    score_every: int | None = None,
    target: float | None = None,
    seed: int = 0,
    device: str | torch.device | None = None,
    output: str | os.PathLike[str] | None = None,
    checkpoint_dir: str | os.PathLike[str] | None = None,
    save_every: int | None = None,
    resume: bool = False,
    black_box: str | os.PathLike[str] | None = None,
    skip_non_finite: int = 0,
    log_dir: str | os.PathLike[str] | None = None,
    log_every: int = 10,
    tensorboard: bool = False,
    progress: Callable[[Report], None] | None = None,
    distributed: str = "ddp",
    distributed_timeout: float = TIMEOUT,
) -> FinetuneResult:
    """Train weights and scales of a QDQ model through its quantizers and write them back into it.

    Learns from labels, from a teacher, or from both (`loss` mixes them). With neither, the teacher is the float
    model that the file was made from, where its file is found (:mod:`onnxqat.training.objective.original`), else the model itself
    with its quantizers off; a hundred unlabelled samples are enough.

    Args:
        model: QDQ model: path, onnx.ModelProto, onnx_ir.Model or onnx_graphsurgeon.Graph; it is not changed.
        data: what :func:`onnxqat.training.data.batches.make` takes: arrays, a path, an iterable or a callable of batches.
        labels: labels of array data; or a file or folder of labels for a `score` such as ``"coco-map"``.
        preprocess: preprocessing line for a folder of images.
        teacher: what is imitated: a float model, a module that takes the same inputs, or a list of them.
        method: how scales learn, a file of ``onnxqat/training/methods``.
        epochs: passes over the data; None, where `max_steps` is not given either: so many that there are about 400
            steps, at most 20 and at most 5,000 samples, at least 1 (:mod:`onnxqat.training.optim.run_length`).
        max_steps: end after so many steps.
        batch_size: samples in a batch, where the model does not prescribe it; None: 32, or 8 where there are fewer than
            1,000 samples and neither `epochs` nor `max_steps` is given.
        optimizer: name of a class of ``torch.optim``, such as ``"adamw"``, ``"sgd"`` or ``"radam"``; or a function of
            parameter groups that returns an optimizer.
        optimizer_options: other arguments of it, such as ``{"betas": (0.9, 0.98)}``; momentum is 0.9 for SGD.
        learning_rate: of weights and biases; None: :func:`onnxqat.training.optim.learning_rates.default`.
        scale_learning_rate: of scales; None: the same for SGD, relative to the size of the scale for Adam and its kind.
        learning_rates: glob pattern of ONNX tensor names -> factor on the learning rate of the constants and scales of
            tensors that it matches, 0 to leave them as they are.
        weight_decay: of weights of two dimensions or more; scales and biases have none.
        warmup_steps: None: a twentieth of the run.
        schedule: how learning rates fall, a file of ``onnxqat/training/schedules``: ``"cosine"``, ``"linear"``,
            ``"constant"``, ``"step"``, ``"multistep"`` or ``"plateau"``; or a function of step and length of the run
            that returns a factor.
        schedule_options: what the schedule has beyond that, such as ``{"milestones": [10, 15], "gamma": 0.1}``.
        loss: None: ``Loss()``; or a function of outputs, labels and the teacher's outputs that returns a scalar.
        features: inner tensors to compare with the teacher's, too: their names, a dict of names where the teacher has
            others, or a :class:`onnxqat.training.objective.features.Features`.
        ema: decay of a moving average of the weights, which is then evaluated and written; None: no average.
        gradient_norm: limit on the norm of the gradient.
        gradient_value: limit on the absolute value of each of its elements.
        progressive: bits, such as ``[8, 4]``, of the grids that the run begins with; it ends on those of the file
            (:mod:`onnxqat.training.callbacks.progressive`).
        dampening: final weight of a term that keeps weights from oscillating between two codes, 0.1 in the paper
            (:mod:`onnxqat.training.callbacks.dampening`).
        freezing: oscillations a step above which a weight is held where it is, 0.01 in the paper
            (:mod:`onnxqat.training.callbacks.freezing`).
        batch_norm: what BatchNormalization does (:mod:`onnxqat.training.callbacks.batchnorm_statistics`): ``"live"`` statistics of the
            batch, ``"frozen"`` ones of the file, or ``"auto"``: live where ``insert-qdq`` kept it for training, frozen
            in files of other tools.
        reestimate_batch_norm: estimate its statistics again on so many batches of the data, whenever the module is
            scored, and before it is written; None: keep those that training gathered.
        grad_bits: width of the gradients that flow back into layers with quantized weights, rounded at random
            (:mod:`onnxqat.training.execution.gradient_quantization`); None leaves them float.
        arithmetic: what operators compute: on dequantized values (``"float"``), or on codes as the kernels of the
            target do, such as ``"onnxruntime"`` (:mod:`onnxqat.arithmetic`): the run trains and scores what the chip
            computes, in float32, not in shards. None: what the backend table of the file says, else ``"float"``, as in
            half precision, compiled, in shards and where inner tensors are compared.
        precision: ``"bfloat16"`` or ``"float16"``: autocast around the model; quantizers compute in float32.
        accumulate: batches that make one step.
        compile: through ``torch.compile``; a name is that of a backend of it.
        channels_last: tensors of four dimensions have their channels last in memory.
        recompute: into how many segments the graph is cut whose inner tensors the backward pass computes again, to save
            memory; True: the square root of the number of operators.
        rematerialize: whether the backward pass computes quantized tensors again, so that they are not kept from the
            forward pass (:mod:`onnxqat.bridge.speed.rematerialize`); None: on CUDA.
        augment: changes the inputs of a batch (dict from name to tensor), for student and teacher alike.
        callbacks: of your own, which are called at points of the run (:class:`onnxqat.training.callbacks.callback.Callback`).
        evaluate: score of the module before the first step and after each epoch, higher is better; the best is
            written, the start included. With neither this nor `score`: minus the loss on samples that are held out of training
            (:mod:`onnxqat.training.data.holdout`); the last epoch that has more than half of the best gain is written, or
            the start where none has any.
        score: the same of the file that the module would be written as, with what is folded for deployment, in
            onnxruntime: a metric (:func:`onnxqat.metrics.names`) on samples that are held out of training, or a function
            of a :class:`onnxqat.metrics.Predictor`, also by its place ``"module:function"``.
        score_every: steps between two scores; None scores after each epoch.
        target: end once what is to be written scores at least so much.
        seed: of the order of samples and of torch's random generator, which is as before afterwards.
        device: None: CUDA where there is one.
        output: where to write the model; needed when `model` is a path.
        checkpoint_dir: folder for ``last.safetensors`` and ``best.safetensors``.
        save_every: steps between two writings of ``last.safetensors`` within an epoch.
        resume: go on from ``last.safetensors`` where it exists.
        black_box: folder for the first step whose loss or gradient is not finite; None: ``black_box`` in
            `checkpoint_dir`, else `output` with ``.black_box`` behind it; with neither, none is written.
        skip_non_finite: so many such steps are left out before the run ends.
        log_dir: folder for ``log.jsonl``.
        log_every: steps between two lines of it.
        tensorboard: write event files for TensorBoard there, too.
        progress: called after each step.
        distributed: how several processes train, which ``torchrun`` or a process group of the caller makes of this
            call: a file of ``onnxqat/training/distributed/strategies``.
        distributed_timeout: seconds that a process waits for the others.

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
