"""A run of :func:`onnxqat.finetune`, put together from its options."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch
from torch import nn

from onnxqat import discover
from onnxqat.bridge.export.write_back import put_back
from onnxqat.bridge.module import OnnxModule
from onnxqat.bridge.speed.recomputed_batchnorm import remake_batch_norm
from onnxqat.bridge.speed.redundant_quantizers import skip_repeated
from onnxqat.bridge.speed.relu_fusion import fuse_relu
from onnxqat.data.recorded import remarks_on_float
from onnxqat.errors import UsageError
from onnxqat.graph import io, notes
from onnxqat.training import methods, outcome, schedules
from onnxqat.training.callbacks import batchnorm_statistics as batch_norms
from onnxqat.training.callbacks.accumulators import KeptWidth
from onnxqat.training.callbacks.method_penalty import MethodPenalty
from onnxqat.training.callbacks.progressive import Progressive
from onnxqat.training.config import DistillationConfig
from onnxqat.training.data import datasets, holdout
from onnxqat.training.data.datasets import TrainingData
from onnxqat.training.distributed.blocks import Blocks, InFloat32
from onnxqat.training.distributed.join import joined
from onnxqat.training.distributed.process_context import ProcessContext
from onnxqat.training.distributed.shards import Sharded
from onnxqat.training.execution import devices, target_arithmetic
from onnxqat.training.execution.in_float32 import Source
from onnxqat.training.loop import file_score
from onnxqat.training.loop.file_score import FileScore
from onnxqat.training.loop.loop import Loop
from onnxqat.training.loop.progress import Progress
from onnxqat.training.objective import distillation, doubtful_labels, joined_branches
from onnxqat.training.objective import original as originals
from onnxqat.training.objective.distillation import DistillationSetup
from onnxqat.training.objective.features import Features
from onnxqat.training.objective.losses import Loss
from onnxqat.training.objective.original import Original
from onnxqat.training.objective.output_weights import Measure, Weighted
from onnxqat.training.objective.teachers import TeacherSpec, check_inputs, check_others, output_kind
from onnxqat.training.optim import optimizers
from onnxqat.training.optim.moving_average import MovingAverage
from onnxqat.training.optim.run_length import steps_an_epoch, total_steps
from onnxqat.training.optim.schedule import Schedule
from onnxqat.training.options import Options
from onnxqat.training.result import FinetuneResult, choose
from onnxqat.types import Remark


def run(model: io.ModelSource, data: Any, given: Options) -> FinetuneResult[Any]:
    """Train as :func:`onnxqat.finetune` documents, with its results and errors."""
    if isinstance(model, (str, os.PathLike)) and given.output is None:
        raise UsageError("option-invalid", f"no output path for the tuned {os.fspath(model)!r}")
    given.check()
    check_others(_given_teachers(given), model)
    source = Source(model)
    graph = source.graph
    given = _resolved(given, graph)
    execution = given.executed
    module = _student(graph, given)
    whole = _material(model, graph, data, given)
    original = _original(graph, model, whole, given)
    scored = _file_score(graph, whole, given, original)
    teachers = original.teachers or distillation.teachers_of(
        given.distillation.teacher, module, has_labels=whole.has_labels
    )
    check_inputs(teachers, graph)
    with joined(given.device, strategy=execution.distributed, timeout=execution.distributed_timeout) as (world, place):
        part = datasets.sharded(whole, world, own=isinstance(data, Sharded))
        for each in (module, *(one.module for one in teachers)):
            each.to(place)
        compared = _compared(given, graph, whole, module, teachers)
        lesson = distillation.lesson(
            module, teachers, loss=given.objective, outputs=output_kind(graph), features=compared
        )
        trained = world.place(module)
        if isinstance(trained, Blocks):
            _refuse_in_shards(given)
            lesson = dataclasses.replace(lesson, forward=InFloat32(trained))
        elif not execution.recompute:  # which may name the tensors that go
            lesson = dataclasses.replace(lesson, forward=remake_batch_norm(fuse_relu(skip_repeated(lesson.forward))))
        estimates = next((each for each in given.called if isinstance(each, batch_norms.Reestimate)), None)
        if estimates is not None and estimates.batches is None:
            estimates.batches = whole.source  # the same in every process, unlike those of the loop
        doubts = _doubts_of_labels(trained, lesson, whole, world, given)
        lesson, part, sizes = _weighted(trained, part, lesson, world, given)
        loop = _loop(trained, part, lesson, world, given, evaluate=scored or given.scoring.evaluate)
        start = time.perf_counter()
        with devices.seeded(given.seed, place):
            fitted = loop.run(resume=given.saving.resume)
        seconds = time.perf_counter() - start
        written = choose(loop, fitted)
        if estimates is not None and written != "start":
            estimates.estimate(trained)
        flat = world.flat(trained)
        told = outcome.remarks(flat, given, part, fitted.progress, sizes.errors)  # which may ask all processes
        tuned = _write_tuned(world, flat, source, model, given)
        world.barrier()
    unscored = "loss" if given.by_loss else "evaluate"
    return FinetuneResult(
        tuned,
        flat,
        written=written,
        seconds=seconds,
        remarks=(*source.remarks, *whole.remarks, *original.remarks, *_other_teacher(graph, given), *doubts, *told),
        score=unscored if scored is None else scored.score.name,
        scored_samples=sum(map(holdout.size, whole.scored)),
        held_out=whole.held_out,
        arithmetic=execution.arithmetic or target_arithmetic.FLOAT,
        **_summary(fitted.progress),
    )


def _resolved(given: Options, graph: ir.Model) -> Options:
    """`given` with what follows from the file."""
    execution = given.executed
    arithmetic = target_arithmetic.resolve(
        execution.arithmetic,
        graph,
        precision=execution.precision,
        compiled=bool(execution.compile),
        distributed=execution.distributed,
        inner=given.distillation.features is not None,
    )
    execution = dataclasses.replace(execution, arithmetic=arithmetic)
    width = notes.accumulator_bits(graph)
    return dataclasses.replace(
        given,
        batch_norm=batch_norms.resolve(given.batch_norm, graph),
        execution=execution,
        # Last, so that what others do to weights is within the width too.
        callbacks=(*given.called, *([] if width is None else [KeptWidth(graph, width)])),
    )


def _student(graph: ir.Model, given: Options) -> OnnxModule:
    return distillation.student(
        graph,
        given.method,
        grad_bits=given.executed.grad_bits,
        batch_norm=given.batch_norm,
        arithmetic=given.executed.arithmetic or target_arithmetic.FLOAT,
    )


def _material(model: io.ModelSource, graph: ir.Model, data: Any, given: Options) -> TrainingData:
    """The data of the run, divided where a part of them is scored."""
    return datasets.read(
        graph,
        data.data if isinstance(data, Sharded) else data,
        None if file_score.place_of(given.labels) is not None else given.labels,
        preprocess=given.preprocess,
        batch_size=given.batch_size,
        limit=given.limit,
        has_length=given.has_length,
        seed=given.seed,
        hold_out=given.by_loss or file_score.is_metric(given.scoring.score),
        origin=model,
    )


def _original(graph: ir.Model, model: io.ModelSource, data: TrainingData, given: Options) -> Original:
    """The float model that the file was made from, where it is to teach."""
    guided = given.distillation != DistillationConfig() or data.has_labels
    return Original() if guided else originals.find(graph, model)


def _compared(
    given: Options, graph: ir.Model, data: TrainingData, module: OnnxModule, teachers: Sequence[TeacherSpec]
) -> Features | None:
    """Inner tensors to compare: the user's, else those that follow from the widths."""
    features, execution = given.distillation.features, given.executed
    if features is not None:
        return features if isinstance(features, Features) else Features(features)
    own = given.objective is not None and not isinstance(given.objective, Loss)
    strategy = discover.load("onnxqat.training.distributed.strategies", execution.distributed).Strategy
    # Labels say what is wanted; data that pass once are all for training; shards and codes have nothing to compare.
    if own or data.has_labels or not data.repeatable or strategy.in_shards:
        return None
    if execution.arithmetic != target_arithmetic.FLOAT:
        return None
    names = joined_branches.sums(graph)
    # Of the whole data, not of a process's part of them: all processes have to compare the same tensors.
    batch = next(iter(data.source.epoch(0)), None) if names else None
    return None if batch is None else joined_branches.features(names, module, teachers, batch, execution)


def _file_score(graph: ir.Model, data: TrainingData, given: Options, original: Original) -> FileScore | None:
    """The score of the file, where the user gives one."""
    score, teacher = given.scoring.score, given.distillation.teacher
    if score is None:
        return None
    labels = file_score.place_of(given.labels)
    teacher = original.path if teacher is None else teacher
    return file_score.of_run(score, graph, data=data.judged, teacher=teacher, labels=labels)


def _weighted(
    module: nn.Module, data: TrainingData, lesson: DistillationSetup, world: ProcessContext, given: Options
) -> tuple[DistillationSetup, TrainingData, Weighted]:
    """Measure the sizes of outputs for the loss, on the file as it was given; data to train on, none of which is lost."""
    if lesson.teacher is None:
        return lesson, data, Weighted(lesson.loss)
    device = next(module.parameters()).device
    names = getattr(module, "input_names", None)
    measure = Measure(lesson.forward, lesson.teacher, names, given.executed, device, world)
    module.eval()
    if data.repeatable:
        found = measure.weighted(lesson.loss, data.source.epoch(0))
    else:
        replayed = holdout.Replayed(data.source)
        found = measure.weighted(lesson.loss, replayed.ahead())
        data = dataclasses.replace(data, source=replayed)
    return dataclasses.replace(lesson, loss=found.loss), data, found


def _doubts_of_labels(
    module: nn.Module, lesson: DistillationSetup, data: TrainingData, world: ProcessContext, given: Options
) -> tuple[Remark, ...]:
    """Remarks on labels that the network, as it was given, does not answer.

    None where labels mean what a loss of the user's makes of them, and in one of several processes, which sees too few.
    """
    own = given.objective is not None and not isinstance(given.objective, Loss)
    if own or not data.has_labels or world.size > 1:
        return ()
    module.eval()
    return doubtful_labels.remarks(lesson.forward, data.scored, getattr(module, "input_names", None), given.executed)


def _refuse_in_shards(given: Options) -> None:
    """Options that need the whole of a weight in each process.

    Raises:
        UsageError: ``option-invalid``.
    """
    execution = given.executed
    asked = {
        "features": given.distillation.features,
        "channels_last": execution.channels_last,
        "recompute": execution.recompute,
        "score": given.scoring.score,
        "arithmetic": execution.arithmetic != "float",
    }
    found = [name for name, value in asked.items() if value]
    found += [each.name for each in given.called if each.needs_whole_weights]
    if found:
        raise UsageError(
            "option-invalid",
            f"{found[0]} does not work on a model in shards ({execution.distributed})",
            hint="train without it, or with the whole model in each process: ddp",
        )


def _loop(
    module: nn.Module,
    data: TrainingData,
    lesson: DistillationSetup,
    world: ProcessContext,
    given: Options,
    *,
    evaluate: Callable[[nn.Module], float] | None,
) -> Loop:
    """The loop over `module`, which is on its device."""
    plan = _schedule(data, given)
    execution, scoring, saving, ema = given.executed, given.scoring, given.saving, given.optimization.ema
    return Loop(
        module=module,
        batches=data.source,
        forward=lesson.forward,
        loss=lesson.loss,
        optimizer=_optimizer(module, _batch_of_all(data, world) * execution.accumulate, given),
        schedule=plan,
        teacher=lesson.teacher,
        augment=given.augment,
        execution=execution,
        callbacks=(MethodPenalty(plan.total_steps), *given.called),
        average=MovingAverage(module, ema) if ema is not None else None,
        evaluate=evaluate,
        scored=data.scored,
        score_every=scoring.every,
        target=scoring.target,
        progress=given.progress,
        world=world,
        folder=saving.path,
        save_every=saving.save_every,
        black_box=saving.box(given.output),
        skip_non_finite=saving.skip_non_finite,
        settings=_settings(plan, data, world, given),
    )


def _schedule(data: TrainingData, given: Options) -> Schedule:
    accumulate, chosen = given.executed.accumulate, given.scheduling
    steps = total_steps(data.source, given.epochs, given.max_steps, accumulate, samples=data.samples)
    return schedules.make(
        chosen.schedule,
        total_steps=steps,
        warmup_steps=steps // 20 if chosen.warmup_steps is None else chosen.warmup_steps,
        steps_per_epoch=steps_an_epoch(data.source, accumulate),
        options=chosen.options,
    )


def _optimizer(module: nn.Module, batch: int, given: Options) -> torch.optim.Optimizer:
    chosen = given.optimization
    return optimizers.make(
        chosen.optimizer,
        module,
        learning_rate=given.learning_rate,
        scale_learning_rate=chosen.scale_learning_rate,
        weight_decay=chosen.weight_decay,
        factors=chosen.learning_rates,
        options=chosen.options,
        batch=batch,
    )


def _batch_of_all(data: TrainingData, world: ProcessContext) -> int:
    """Samples that all processes have in a batch together."""
    return data.batch_size * (world.size if data.prescribed else 1)


def _other_teacher(graph: ir.Model, given: Options) -> tuple[Remark, ...]:
    """A remark where the one teacher is another float model than the one that the file was made from."""
    teachers = _given_teachers(given)
    return tuple(remarks_on_float(graph, teachers[0])) if len(teachers) == 1 else ()


def _given_teachers(given: Options) -> Sequence[Any]:
    teacher = given.distillation.teacher
    return teacher if isinstance(teacher, (list, tuple)) else [teacher]


def _settings(plan: Schedule, data: TrainingData, world: ProcessContext, given: Options) -> dict[str, Any]:
    """Return the settings in which a resumed run has to agree, as JSON values."""
    optimizer, execution = given.optimization.optimizer, given.executed
    progressive = next((each.widths for each in given.called if isinstance(each, Progressive)), None)
    name = optimizer if isinstance(optimizer, str) else getattr(optimizer, "__qualname__", "own")
    return {
        "method": methods.key_of(given.method),
        "optimizer": name,
        "seed": given.seed,
        **schedules.settings(plan),
        "batch_size": _batch_of_all(data, world),
        "accumulate": execution.accumulate,
        "precision": execution.precision,
        "grad_bits": execution.grad_bits,
        "progressive": None if progressive is None else list(progressive),
        "batch_norm": given.batch_norm,
        "arithmetic": execution.arithmetic,
    }


def _write_tuned(world: ProcessContext, module: nn.Module, source: Source, model: Any, given: Options) -> Any:
    """The tuned model, of the kind that was given; one process writes it to a file."""
    if world.writer or not isinstance(model, (str, os.PathLike)):
        output = given.output if world.writer else None
        tuned = put_back(module, source.target, output, metadata={"onnxqat.method": methods.key_of(given.method)})
        return source.like_given(tuned, output)
    return Path(given.output or "")


def _summary(progress: Progress) -> dict[str, Any]:
    return {
        "steps": progress.step,
        "losses": progress.losses,
        "best_epoch": progress.best_epoch,
        "best_score": progress.best_score,
        "start_score": progress.start_score,
        "limited_scales": progress.limited_scales,
        "skipped": progress.skipped,
    }
