"""One run of the demo trainer: network, data, calibration, epochs, files."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import torch
from torch import nn

from onnxqat.bridge.importing.frozen_constants import freeze_constants
from onnxqat.bridge.importing.importer import to_torch
from onnxqat.bridge.module import OnnxModule
from onnxqat.compat import backend_type, switches
from onnxqat.compat.classification import files as outputs
from onnxqat.compat.classification import network as networks
from onnxqat.compat.classification.epochs import Epochs, Shifted, Watched
from onnxqat.compat.classification.evaluation import Scores, measure
from onnxqat.compat.classification.files import Files
from onnxqat.compat.classification.material import Material, open_material
from onnxqat.compat.classification.meters import Log, Meters, Timed
from onnxqat.compat.classification.settings import Settings
from onnxqat.compat.classification.shipped import file_scores, shipped_module
from onnxqat.compat.deploy import prepared_part, set_opset, written
from onnxqat.compat.prepare import prepare_by_platform
from onnxqat.errors import UsageError
from onnxqat.graph import atomic, files_read, io, qdq
from onnxqat.passes import _base as passes
from onnxqat.passes.strip_qdq import StripQdq
from onnxqat.training import schedules
from onnxqat.training.callbacks import batchnorm_statistics
from onnxqat.training.callbacks.method_penalty import MethodPenalty
from onnxqat.training.distributed.join import joined
from onnxqat.training.distributed.process_context import ProcessContext
from onnxqat.training.distributed.shards import shard
from onnxqat.training.execution import devices
from onnxqat.training.execution.execution import Execution
from onnxqat.training.loop.loop import Loop
from onnxqat.training.loop.step import call
from onnxqat.training.objective import distillation, teachers
from onnxqat.training.objective.features import Features
from onnxqat.training.objective.losses import Loss
from onnxqat.training.objective.teachers import output_kind
from onnxqat.training.optim import optimizers
from onnxqat.training.optim.schedule import Schedule
from onnxqat.validation.profile import ProfileReport, profile

_log = logging.getLogger(__name__)

HIGH_RATE = 0.01
STEP_EPOCHS = 30
"""Epochs after which ``--sched step`` divides the learning rate by 10, as in torch's ImageNet example."""


@dataclasses.dataclass(frozen=True)
class Result:
    """Result of a run.

    Attributes:
        scores: of the last epoch, or of the evaluation.
        profile: result of ``--profile``.
        best: top-1 of the best epoch in percent; None where nothing was trained.
        written: the files.
        file: scores in onnxruntime, graph optimizations off, of the best epoch's QDQ file, or of the one that is evaluated;
            None where there is none.
        start: top-1 before the first step in percent; None where nothing was trained, or an earlier run began.
    """

    scores: Scores
    best: float | None
    written: tuple[Path, ...]
    profile: ProfileReport | None = None
    file: Scores | None = None
    start: float | None = None


@files_read.guard
def run(settings: Settings, say: Callable[[str], None]) -> Result:
    """Train, or evaluate, as `settings` say; `say` prints a line.

    Raises:
        QatError: whatever is wrong with model, data, options or checkpoint.
    """
    device = None if settings.gpu is None else f"cuda:{settings.gpu}"
    with joined(device) as (world, place), devices.seeded(settings.number, place):
        return _Run(settings, say if world.writer else _silent, world, place).go()


def _silent(line: str) -> None:
    """Print nothing: for processes that do not report."""


class _Run:
    """State shared by the parts of one run."""

    def __init__(
        self, settings: Settings, say: Callable[[str], None], world: ProcessContext, place: torch.device
    ) -> None:
        self.settings, self.say, self.world, self.place = settings, say, world, place
        self.files = Files(settings)
        self.log = Log(self.files.log if world.writer else None)
        self.best: float | None = None
        self.start: float | None = None
        resume = settings.resume
        self.held = outputs.read_checkpoint(Path(resume)) if resume and not resume.endswith(".onnx") else None
        self.float_model: onnx.ModelProto | None = None
        self.float_graph: ir.Model | None = None
        self.scores = Scores()

    def go(self) -> Result:
        """Train, or evaluate, and return the result."""
        settings = self.settings
        atomic.make_folder(settings.output)
        module, initial, material = self._start()
        if settings.evaluate:
            if self.held is not None:
                module.load_state_dict(self.held["state_dict"])
            self.scores = self._epoch_score_of(module, material)
            given = self._given_file()
            file = None if given is None else self._score_file(given, material)
            return Result(self.scores, None, (), self._profile(module, initial, material), file)
        if settings.lr > HIGH_RATE and not settings.not_qat and not any(batchnorm_statistics.modules(module)):
            _log.warning(
                "--lr %g is a rate for float training; without BatchNormalization, which this model has folded, "
                "quantized training takes about 0.001, and a few epochs",
                settings.lr,
            )
        self.files.plan()
        self._train(module, initial, material)
        paths = (self.files.checkpoint, self.files.best_checkpoint, self.files.last, self.files.best, self.files.log)
        written = tuple(path for path in paths if path.exists())
        for path in written:  # by this process or another one of the run
            files_read.adopt(path)
        profile, file = self._profile(module, initial, material), self._file(material)
        return Result(self.scores, self.best, written, profile, file, self.start)

    # ------------------------------------------------------------ start
    def _start(self) -> tuple[OnnxModule, onnx.ModelProto, Material]:
        """The module on its device, with scales; the model that it was made from; and the data."""
        settings = self.settings
        resumed = self.held is not None or settings.resume.endswith(".onnx")
        if self.held is not None:
            graph = io.load(onnx.load_from_string(self.held["model"]))
        else:
            graph = io.load(settings.resume) if resumed else networks.network(settings)
        networks.check_classes(graph, settings)
        if settings.distill_method is not None:
            self.float_graph = self._float_graph(graph, resumed=resumed)
        material = open_material(
            settings.data,
            networks.image_input(graph),
            batch_size=self._batch_size(graph),
            workers=settings.workers,
            seed=settings.number,
            preprocess=settings.preprocess,
            image_size=settings.image_size,
        )
        self.outputs = output_kind(graph)
        if settings.not_qat:
            self.float_model = io.to_proto(graph)
            module = to_torch(self.float_model)
            freeze_constants(module, graph)
            return module.to(self.place), self.float_model, material
        module = self._prepared(io.to_proto(graph)).to(self.place)
        if not settings.evaluate:
            set_opset(io.load(prepared_part(module)[1].qdq_model), settings.opset_version)  # refused before training
        _, known = prepared_part(module)
        if known.calibration is not None:
            self._calibrate(module, material)
        return module, written(module), material

    def _float_graph(self, graph: ir.Model, *, resumed: bool) -> ir.Model | None:
        """The network in float, which teaches where no other is named; None where a run goes on without its file."""
        if not resumed:
            return graph.clone()
        return None if self.settings.model_path is None else networks.network(self.settings)

    def _batch_size(self, graph: ir.Model) -> int:
        """``--batch-size``, or the batch that the file is fixed to, as those that this trainer writes are."""
        shape, given = networks.image_input(graph).shape, self.settings.batch_size
        fixed = shape[0] if shape and isinstance(shape[0], int) else None
        if fixed is None or fixed == given:
            return given
        if not self.settings.evaluate:
            _log.warning("the file takes batches of %d and no others: --batch-size %d is not followed", fixed, given)
        return fixed

    def _prepared(self, graph: onnx.ModelProto) -> OnnxModule:
        """With quantizers; BatchNormalization stays where that is asked for and the backend can take it up."""
        table, kept = backend_type.table_name(self.settings.backend), self.settings.batch_norm == "keep"
        if kept:
            try:
                return prepare_by_platform(graph, table, batch_norm="keep")
            except UsageError as error:
                if error.code != "option-invalid":
                    raise
                _log.warning("BatchNormalization is folded: %s", error.message)
        return prepare_by_platform(graph, table)

    def _calibrate(self, module: OnnxModule, material: Material) -> None:
        count = self.settings.calibration_batches
        self.say(f"calibrating on {count} batches")
        switches.enable_calibration(module)
        module.eval()
        batches = shard(material.plain, self.world, own=False, whole=False).epoch(0)
        with torch.no_grad():
            for batch in itertools.islice(batches, count):
                call(module, batch.to(self.place), module.input_names)
        switches.enable_quantization(module)

    # ------------------------------------------------------------ train
    def _train(self, module: OnnxModule, initial: onnx.ModelProto, material: Material) -> None:
        """Train `module` as the settings say, keep the best epoch, and leave what the next run resumes from."""
        settings = self.settings
        batches = shard(Timed(material.train, settings.start_epoch), self.world, own=False, whole=False)
        steps = batches.steps
        assert steps is not None
        given = networks.teacher(settings, self.float_graph)
        guides = teachers.load(given) if given is not None else []
        for guide in guides:
            guide.module.to(self.place)
        lesson = distillation.lesson(module, guides, loss=self._loss(), outputs=self.outputs, features=self._features())
        watched = Watched(lesson.loss)
        plan, offset = self._schedule(steps), settings.start_epoch * steps
        best = None if self.held is None else float(self.held["best_acc1"])
        epochs = Epochs(settings, self.files, self.log, self.say, watched, best)
        epochs.models = (module, initial, self.float_model)
        loop = Loop(
            module=module,
            batches=batches,
            forward=lesson.forward,
            loss=watched,
            optimizer=self._optimizer(module),
            schedule=Shifted(plan, offset) if offset else plan,
            teacher=lesson.teacher,
            execution=Execution(precision=self._precision()),
            evaluate=lambda trained: self._epoch_score(trained, material),
            folder=self.files.state,
            # Not the length of the run: the manual goes on with more epochs where those before were not enough.
            settings={"optim": settings.optim, "seed": settings.number, "schedule": settings.sched},
            callbacks=(MethodPenalty(plan.total_steps - offset), epochs),
            world=self.world,
        )
        if self.held is not None:
            if self.world.writer:
                atomic.make_folder(self.files.state)
                io.write_atomic(self.files.state / "last.safetensors", self.held["state"])
            self.world.barrier()
        loop.run(resume=self.held is not None)
        self.best = epochs.best
        if self.start is not None and self.best is not None and self.best < self.start:
            _log.warning(
                "training did not help: Acc@1 was %.3f before the first step and is %.3f after the best epoch; "
                "take a smaller --lr, or train longer",
                self.start,
                self.best,
            )
        self.world.barrier()
        if self.world.writer:
            self.files.clean()

    def _loss(self) -> Loss:
        settings = self.settings
        distance: Any = "mse" if settings.distill_method == "mse" else "auto"
        return Loss(alpha=settings.distill_alpha, temperature=settings.temperature, distance=distance)

    def _features(self) -> Features | None:
        method = self.settings.distill_method
        if method not in ("feature-mse", "attention"):
            return None
        return Features(self.settings.distill_tensors, distance="mse" if method == "feature-mse" else "attention")

    def _schedule(self, steps: int) -> Schedule:
        settings = self.settings
        options = {"step_size": STEP_EPOCHS} if settings.sched == "step" else {}
        total = settings.epochs * steps
        return schedules.make(settings.sched, total_steps=total, steps_per_epoch=steps, options=options)

    def _optimizer(self, module: nn.Module) -> torch.optim.Optimizer:
        settings = self.settings
        options = {"momentum": settings.momentum} if settings.optim == "sgd" else {}
        return optimizers.make(
            settings.optim,
            module,
            learning_rate=settings.lr,
            scale_learning_rate=settings.scale_rate,
            weight_decay=settings.weight_decay,
            options=options,
        )

    def _precision(self) -> Any:
        if not self.settings.amp:
            return "float32"
        return "float16" if self.place.type == "cuda" else "bfloat16"

    # ------------------------------------------------------------ measure
    def _measure(self, module: nn.Module, material: Material) -> Scores:
        meters = Meters("Test: ", material.val.steps, self.settings.print_freq, self.say)
        scores = measure(module, material.val, self.place, self.world, meters)
        self.say(f" * Acc@1 {scores.top1:.3f} Acc@5 {scores.top5:.3f}")
        self.log.write(event="test", **dataclasses.asdict(scores))
        return scores

    def _epoch_score(self, module: nn.Module, material: Material) -> float:
        self.scores = self._epoch_score_of(module, material)
        if self.start is None and self.held is None:  # the loop's first question
            self.start = self.scores.top1
        return self.scores.top1

    def _epoch_score_of(self, module: nn.Module, material: Material) -> Scores:
        """Scores of what is shipped of `module`, which is not what trains where BatchNormalization is kept."""
        kept = self.float_model is not None
        shipped = module if kept else shipped_module(module, self.place, self.settings.onnx_batch)
        return self._measure(shipped, material)

    def _file(self, material: Material) -> Scores | None:
        """Scores of the file that the best epoch wrote; other processes than the writer have none."""
        if self.float_model is not None or not self.world.writer or not self.files.best.exists():
            return None
        files_read.adopt(self.files.best)  # of the run that this one goes on from, where no epoch was better
        return self._score_file(self.files.best, material)

    def _given_file(self) -> Path | None:
        """The QDQ file that is evaluated; None for a float file, which gets its quantizers here, and for weights."""
        name = self.settings.resume or self.settings.model_path or ""
        held = name.endswith(".onnx") and self.float_model is None and self.world.writer
        return Path(name) if held and qdq.is_quantized(io.load(name)) else None

    def _score_file(self, file: Path, material: Material) -> Scores:
        scores = file_scores(file, material.val)
        self.say(f" * {file.name} in onnxruntime: Acc@1 {scores.top1:.3f} of {scores.samples} samples")
        self.log.write(event="file", **dataclasses.asdict(scores))
        return scores

    def _profile(self, module: OnnxModule, initial: onnx.ModelProto, material: Material) -> ProfileReport | None:
        """Every quantizer of the module as it is now, against the float model that it was made from."""
        if not self.settings.profile or self.float_model is not None or not self.world.writer:
            return None
        original = io.load(initial)
        passes.rewrite(original, [StripQdq()])
        batches = ({k: v.numpy() for k, v in batch.inputs.items()} for batch in material.val.epoch(0))
        return profile(io.to_proto(original), written(module), batches)
