"""Fine-tune a QDQ model: import, train, write back."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from onnxqat.bridge.write_back import write_back
from onnxqat.calibration.inputs import of_graph, static_batch
from onnxqat.calibration.preprocess import Preprocess, parse
from onnxqat.errors import UsageError
from onnxqat.graph import io
from onnxqat.training import batch_norm as batch_norms
from onnxqat.training import batches, gradients, holdout, optimizers, placement, roles, schedules
from onnxqat.training.checkpoint import Progress
from onnxqat.training.distributed.join import TIMEOUT, joined
from onnxqat.training.distributed.shards import Sharded, shard, shard_scored
from onnxqat.training.execution import Execution, Precision
from onnxqat.training.features import Features, Names
from onnxqat.training.fit import fit
from onnxqat.training.frozen_constants import freeze_constants
from onnxqat.training.loop import Loop, Report
from onnxqat.training.losses import Objective
from onnxqat.training.method_penalty import MethodPenalty
from onnxqat.training.moving_average import MovingAverage
from onnxqat.training.result import FinetuneResult, choose
from onnxqat.training.run_length import total_steps
from onnxqat.training.step import Augment
from onnxqat.training.teachers import output_kind
from onnxqat.training.world import World

__all__ = ["FinetuneResult", "Report", "finetune", "fit", "freeze_constants"]


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
    batch_size: int = 32,
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
    batch_norm: batch_norms.Mode = "live",
    reestimate_batch_norm: int | None = None,
    grad_bits: int | None = None,
    precision: Precision = "float32",
    augment: Augment | None = None,
    evaluate: Callable[[nn.Module], float] | None = None,
    seed: int = 0,
    device: str | torch.device | None = None,
    output: str | os.PathLike[str] | None = None,
    checkpoint_dir: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: Callable[[Report], None] | None = None,
    distributed: str = "ddp",
    distributed_timeout: float = TIMEOUT,
) -> FinetuneResult:
    """Train weights and scales of a QDQ model through its quantizers and write them back into it.

    Learns from labels, from a teacher, or from both (`loss` mixes them). With neither, the teacher is the model
    itself with its quantizers off, which works on a hundred unlabelled samples.

    Args:
        model: QDQ model: path, onnx.ModelProto, onnx_ir.Model or onnx_graphsurgeon.Graph; it is not changed.
        data: what :func:`onnxqat.training.batches.make` takes: arrays, a path, an iterable or a callable of batches.
        labels: labels of array data.
        preprocess: preprocessing line for a folder of images.
        teacher: what is imitated: a float model, a module that takes the same inputs, or a list of them.
        method: how scales learn, a file of ``onnxqat/training/methods``.
        epochs: passes over the data; 1 when `max_steps` is not given either.
        max_steps: end after so many steps.
        batch_size: samples a batch, where the model does not prescribe it.
        optimizer: name of a class of ``torch.optim``, such as ``"adamw"``, ``"sgd"`` or ``"radam"``; or a function of
            parameter groups that returns an optimizer.
        optimizer_options: other arguments of it, such as ``{"betas": (0.9, 0.98)}``; momentum is 0.9 for SGD.
        learning_rate: of weights and biases; None: :func:`onnxqat.training.learning_rates.default`.
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
            others, or a :class:`onnxqat.training.features.Features`.
        ema: decay of a moving average of the weights, which is then evaluated and written; None: no average.
        gradient_norm: limit on the norm of the gradient.
        batch_norm: what a BatchNormalization that was kept does (:mod:`onnxqat.training.batch_norm`): ``"live"``
            statistics of the batch, or ``"frozen"`` ones of the file.
        reestimate_batch_norm: estimate its statistics again on so many batches of the data, whenever the module is
            scored, and before it is written; None: keep those that training gathered.
        grad_bits: width of the gradients that flow back into layers with quantized weights, rounded at random
            (:mod:`onnxqat.training.gradients`); None leaves them float.
        precision: ``"bfloat16"``: autocast around the model; quantizers compute in float32.
        augment: changes the inputs of a batch (dict from name to tensor), for student and teacher alike.
        evaluate: score of the module before the first step and after each epoch, higher is better; the best is
            written, the start included. None: minus the loss on samples that are held out, where there are no labels
            and at least 100 samples, else on training samples (:mod:`onnxqat.training.holdout`); the last epoch that
            beats the start is written, or the start where none does.
        seed: of the order of samples and of torch's random generator, which is as before afterwards.
        device: None: CUDA where there is one.
        output: where to write the model; needed when `model` is a path.
        checkpoint_dir: folder for ``last.safetensors`` and ``best.safetensors``.
        resume: go on from ``last.safetensors`` where it exists.
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
    if isinstance(model, (str, os.PathLike)) and output is None:
        raise UsageError("option-invalid", f"no output path for the tuned {os.fspath(model)!r}")
    graph = io.load(model)
    module = roles.student(graph, method)
    inputs = of_graph(graph.graph)
    line = parse(preprocess) if isinstance(preprocess, str) else preprocess
    given_data = data.data if isinstance(data, Sharded) else data
    source = batches.make(given_data, labels, inputs, batch_size=batch_size, seed=seed, preprocess=line)
    has_labels = labels is not None or batches.yields_labels(source)
    given = roles.teachers_of(teacher, module, has_labels=has_labels)
    if grad_bits is not None:
        gradients.quantize(module, grad_bits)
    batch_norms.set_mode(module, batch_norm)
    own, whole = isinstance(data, Sharded), static_batch(inputs) is not None
    with joined(device, strategy=distributed, timeout=distributed_timeout) as (world, place):
        source, scored = holdout.split(source, has_labels=has_labels) if evaluate is None else (source, ())
        estimates = None if reestimate_batch_norm is None else batch_norms.Reestimate(source, reestimate_batch_norm)
        source = shard(source, world, own=own, whole=whole)
        scored = shard_scored(scored, world, own=own, whole=whole)
        steps = total_steps(source, epochs, max_steps)
        plan = schedules.make(
            schedule,
            total_steps=steps,
            warmup_steps=steps // 20 if warmup_steps is None else warmup_steps,
            steps_per_epoch=source.steps,
            options=schedule_options,
        )
        for each in (module, *(one.module for one in given)):
            each.to(place)
        compared = features if features is None or isinstance(features, Features) else Features(features)
        lesson = roles.lesson(module, given, loss=loss, outputs=output_kind(graph), features=compared)
        trained = world.place(module)
        if trained is not module and lesson.forward is not module:
            hint = "train without features, or with the whole model in each process"
            raise UsageError("option-invalid", "no inner tensors are compared of a model in shards", hint=hint)
        loop = Loop(
            module=trained,
            batches=source,
            forward=trained if lesson.forward is module else lesson.forward,
            loss=lesson.loss,
            optimizer=optimizers.make(
                optimizer,
                trained,
                learning_rate=learning_rate,
                scale_learning_rate=scale_learning_rate,
                weight_decay=weight_decay,
                factors=learning_rates,
                options=optimizer_options,
            ),
            schedule=plan,
            teacher=lesson.teacher,
            augment=augment,
            execution=Execution(precision=precision, gradient_norm=gradient_norm),
            parts=(MethodPenalty(steps), *(() if estimates is None else (estimates,))),
            average=MovingAverage(trained, ema) if ema is not None else None,
            evaluate=evaluate,
            scored=scored,
            progress=progress,
            world=world,
            folder=Path(checkpoint_dir) if checkpoint_dir is not None else None,
            settings={"method": method, "optimizer": _name(optimizer), "seed": seed, **schedules.settings(plan)},
        )
        loop.settings["batch_size"] = (static_batch(inputs) or 0) * world.size or batch_size
        loop.settings["grad_bits"] = grad_bits
        loop.settings["batch_norm"] = batch_norm
        start = time.perf_counter()
        with placement.seeded(seed, place):
            fitted = loop.run(resume=resume)
        seconds = time.perf_counter() - start
        written = choose(loop, fitted)
        if estimates is not None and written != "start":
            estimates.estimate(trained)
        whole_module = world.flat(trained)
        tuned = _written(world, whole_module, model, output, {"onnxqat.method": method})
        world.barrier()
    return FinetuneResult(tuned, whole_module, written=written, seconds=seconds, **_summary(fitted.progress))


def _written(world: World, module: nn.Module, model: Any, output: Any, metadata: dict[str, str]) -> Any:
    """The tuned model, of the kind that was given; one process writes it to a file."""
    if world.writer or not isinstance(model, (str, os.PathLike)):
        return write_back(module, model, output if world.writer else None, metadata=metadata)
    return Path(output)


def _name(optimizer: str | optimizers.Make) -> str:
    return optimizer if isinstance(optimizer, str) else getattr(optimizer, "__qualname__", "own")


def _summary(progress: Progress) -> dict[str, Any]:
    return {
        "steps": progress.step,
        "losses": progress.losses,
        "best_epoch": progress.best_epoch,
        "best_score": progress.best_score,
        "limited_scales": progress.limited_scales,
    }
