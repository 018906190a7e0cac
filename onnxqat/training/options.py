"""The keywords of :func:`onnxqat.finetune` in one object, for the functions that put a run together."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch

from onnxqat.data.preprocess import Preprocess
from onnxqat.errors import UsageError
from onnxqat.graph import io
from onnxqat.metrics import ScoreSource
from onnxqat.training import schedules
from onnxqat.training.callbacks import _found as callback_files
from onnxqat.training.callbacks import batchnorm_statistics as batch_norms
from onnxqat.training.callbacks._found import CallbackSource
from onnxqat.training.callbacks.callback import Callback
from onnxqat.training.config import (
    CheckpointConfig,
    DistillationConfig,
    OptimizerConfig,
    ScheduleConfig,
    ScoreConfig,
)
from onnxqat.training.execution import devices
from onnxqat.training.execution.execution import Execution
from onnxqat.training.loop import file_score
from onnxqat.training.loop.loop import Report
from onnxqat.training.loop.step import Augment
from onnxqat.training.objective import _found as loss_files
from onnxqat.training.objective._found import LossSource
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
    limit: int | None = None
    optimizer: str | optimizers.Make | OptimizerConfig = "adamw"
    learning_rate: float | None = None
    schedule: str | schedules.Factor | ScheduleConfig = "cosine"
    loss: LossSource | None = None
    batch_norm: batch_norms.Choice = "auto"
    augment: Augment | None = None
    callbacks: Sequence[CallbackSource] = ()
    score: ScoreSource | ScoreConfig | None = None
    execution: Execution | None = None
    checkpoints: str | os.PathLike[str] | CheckpointConfig | None = None
    seed: int = 0
    device: str | torch.device | None = None
    output: str | os.PathLike[str] | None = None
    progress: Callable[[Report], None] | None = None

    @property
    def optimization(self) -> OptimizerConfig:
        """The optimizer and what is beside it."""
        return self.optimizer if isinstance(self.optimizer, OptimizerConfig) else OptimizerConfig(self.optimizer)

    @property
    def scheduling(self) -> ScheduleConfig:
        """The schedule of learning rates."""
        return self.schedule if isinstance(self.schedule, ScheduleConfig) else ScheduleConfig(self.schedule)

    @property
    def distillation(self) -> DistillationConfig:
        """Models and inner tensors to imitate."""
        return self.teacher if isinstance(self.teacher, DistillationConfig) else DistillationConfig(self.teacher)

    @property
    def scoring(self) -> ScoreConfig:
        """The score."""
        return self.score if isinstance(self.score, ScoreConfig) else ScoreConfig(self.score)

    @property
    def executed(self) -> Execution:
        """Execution of a step."""
        return Execution() if self.execution is None else self.execution

    @property
    def saving(self) -> CheckpointConfig:
        """Files that are written on the way."""
        given = self.checkpoints
        return given if isinstance(given, CheckpointConfig) else CheckpointConfig(given)

    @functools.cached_property
    def objective(self) -> Objective | None:
        """The loss, made of its file where it is one."""
        return loss_files.made(self.loss)

    @functools.cached_property
    def called(self) -> tuple[Callback, ...]:
        """The callbacks, made of their files where they are such."""
        return callback_files.made(self.callbacks)

    @property
    def by_loss(self) -> bool:
        """Check whether the loss is the score."""
        return self.scoring.evaluate is None and self.scoring.score is None

    @property
    def has_length(self) -> bool:
        """Check whether the length of the run is given."""
        return self.epochs is not None or self.max_steps is not None

    def check(self) -> None:
        """Refuse options that make no sense together, before anything is read.

        Raises:
            UsageError: ``option-invalid``.
            ModelError: ``output-not-writable``.
        """
        _ = (
            self.optimization,
            self.scoring,
            self.saving,
            self.objective,
            self.called,
        )  # each refuses what makes no sense in itself
        devices.check_seed(self.seed)
        if file_score.place_of(self.labels) is not None and not file_score.is_metric(self.scoring.score):
            raise UsageError(
                "option-invalid",
                f"labels in {self.labels} are for a metric",
                hint="name one, as in score='coco-map'; labels to train on are an array, or lie in the data",
            )
        if self.output is not None:
            io.check_writable(self.output)
