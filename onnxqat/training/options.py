"""The keywords of :func:`onnxqat.finetune` in one object, for the functions that put a run together."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from onnxqat.data.preprocess import Preprocess
from onnxqat.errors import UsageError
from onnxqat.graph import io
from onnxqat.metrics import ScoreSource
from onnxqat.training import schedules
from onnxqat.training.callbacks import batchnorm_statistics as batch_norms
from onnxqat.training.callbacks.callback import Callback
from onnxqat.training.callbacks.dampening import Dampening
from onnxqat.training.callbacks.freezing import Freezing
from onnxqat.training.callbacks.progressive import Progressive
from onnxqat.training.callbacks.value_clipping import ValueClipping
from onnxqat.training.distributed.join import TIMEOUT
from onnxqat.training.execution import devices
from onnxqat.training.execution.execution import Execution, Precision
from onnxqat.training.loop import file_score
from onnxqat.training.loop.loop import Report
from onnxqat.training.loop.step import Augment
from onnxqat.training.objective.features import Features, Names
from onnxqat.training.objective.losses import Objective
from onnxqat.training.optim import optimizers


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Keywords of :func:`onnxqat.finetune`, which explains each; a test keeps the two alike."""

    labels: Any = None
    preprocess: str | Preprocess | None = None
    teacher: Any = None
    method: str = "lsq"
    epochs: int | None = None
    max_steps: int | None = None
    batch_size: int | None = None
    optimizer: str | optimizers.Make = "adamw"
    optimizer_options: Mapping[str, Any] | None = None
    learning_rate: float | None = None
    scale_learning_rate: float | None = None
    learning_rates: Mapping[str, float] | None = None
    weight_decay: float = 0.0
    warmup_steps: int | None = None
    schedule: str | schedules.Factor = "cosine"
    schedule_options: Mapping[str, Any] | None = None
    loss: Objective | None = None
    features: Features | Names | None = None
    ema: float | None = None
    gradient_norm: float | None = None
    gradient_value: float | None = None
    progressive: Sequence[int] | None = None
    dampening: float | None = None
    freezing: float | None = None
    batch_norm: batch_norms.Choice = "auto"
    reestimate_batch_norm: int | None = None
    grad_bits: int | None = None
    arithmetic: str | None = None
    precision: Precision = "float32"
    accumulate: int = 1
    compile: bool | str = False
    channels_last: bool = False
    recompute: bool | int = False
    rematerialize: bool | None = None
    augment: Augment | None = None
    callbacks: Sequence[Callback] = ()
    evaluate: Callable[[nn.Module], float] | None = None
    score: ScoreSource | None = None
    score_every: int | None = None
    target: float | None = None
    seed: int = 0
    device: str | torch.device | None = None
    output: str | os.PathLike[str] | None = None
    checkpoint_dir: str | os.PathLike[str] | None = None
    save_every: int | None = None
    resume: bool = False
    black_box: str | os.PathLike[str] | None = None
    skip_non_finite: int = 0
    log_dir: str | os.PathLike[str] | None = None
    log_every: int = 10
    tensorboard: bool = False
    progress: Callable[[Report], None] | None = None
    distributed: str = "ddp"
    distributed_timeout: float = TIMEOUT

    @property
    def execution(self) -> Execution:
        """Execution options of a step."""
        return Execution(
            precision=self.precision,
            gradient_norm=self.gradient_norm,
            accumulate=self.accumulate,
            compile=self.compile,
            channels_last=self.channels_last,
            recompute=self.recompute,
            rematerialize=self.rematerialize,
        )

    @property
    def by_loss(self) -> bool:
        """Check whether the loss is the score."""
        return self.evaluate is None and self.score is None

    @property
    def has_length(self) -> bool:
        """Check whether the length of the run is given."""
        return self.epochs is not None or self.max_steps is not None

    @property
    def objectives(self) -> tuple[Callback, ...]:
        """Parts that change objective, gradients or weights from step to step, in the order in which they run."""
        return (
            *(() if self.progressive is None else (Progressive(self.progressive),)),
            *(() if self.dampening is None else (Dampening(self.dampening),)),
            *(() if self.gradient_value is None else (ValueClipping(self.gradient_value),)),
            *(() if self.freezing is None else (Freezing(self.freezing),)),
        )

    def check(self) -> None:
        """Refuse numbers that make no sense, before anything is read.

        Raises:
            UsageError: ``option-invalid``.
            ModelError: ``output-not-writable``.
        """
        _ = self.execution
        devices.check_seed(self.seed)
        if not 0 <= self.weight_decay < math.inf:
            raise UsageError("option-invalid", f"weight_decay is {self.weight_decay}; it must be finite and >= 0")
        if self.ema is not None and not 0 <= self.ema < 1:
            raise UsageError(
                "option-invalid", f"the decay of the moving average, ema, is {self.ema}; it lies in [0, 1)"
            )
        if self.save_every is not None and self.save_every < 1:
            raise UsageError("option-invalid", f"save_every is {self.save_every}; it must be at least 1")
        if self.score_every is not None and self.score_every < 1:
            raise UsageError("option-invalid", f"score_every is {self.score_every}; it must be at least 1")
        if self.evaluate is not None and self.score is not None:
            raise UsageError("option-invalid", "evaluate and score are two scores of one run", hint="give one of them")
        if file_score.place_of(self.labels) is not None and not file_score.is_metric(self.score):
            raise UsageError(
                "option-invalid",
                f"labels in {self.labels} are for a metric",
                hint="name one, as in score='coco-map'; labels to train on are an array, or lie in the data",
            )
        if self.arithmetic not in (None, "float") and self.precision != "float32":
            raise UsageError(
                "option-invalid",
                f"arithmetic {self.arithmetic!r} with precision {self.precision!r}, which does not hold all codes",
                hint="leave precision out",
            )
        for name in ("score_every", "target") if self.evaluate is None and self.score is None else ():
            if getattr(self, name) is not None:
                raise UsageError("option-invalid", f"{name} without a score", hint="give score or evaluate")
        for name in ("resume", "save_every") if self.checkpoint_dir is None else ():
            if getattr(self, name):
                raise UsageError(
                    "option-invalid", f"{name} without a folder of checkpoints", hint="give checkpoint_dir"
                )
        if self.output is not None:
            io.check_writable(self.output)
        if self.skip_non_finite < 0:
            raise UsageError("option-invalid", f"skip_non_finite is {self.skip_non_finite}; it must be at least 0")

    @property
    def folder(self) -> Path | None:
        """For checkpoints."""
        return None if self.checkpoint_dir is None else Path(self.checkpoint_dir)

    @property
    def box(self) -> Path | None:
        """For the black box."""
        if self.black_box is not None:
            return Path(self.black_box)
        if self.folder is not None:
            return self.folder / "black_box"
        return None if self.output is None else Path(f"{os.fspath(self.output)}.black_box")
