"""Settings of a training run that belong together, each group one argument of :func:`onnxqat.finetune`."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from onnxqat.errors import UsageError
from onnxqat.metrics import ScoreSource
from onnxqat.training import schedules
from onnxqat.training.objective.features import Features, Names
from onnxqat.training.optim import optimizers


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """An optimizer and what is beside it.

    Attributes:
        optimizer: name of a class of ``torch.optim``, such as ``"adamw"``, ``"sgd"`` or ``"radam"``; or a function of
            parameter groups that returns an optimizer.
        options: other arguments of it, such as ``{"betas": (0.9, 0.98)}``; momentum is 0.9 for SGD.
        scale_learning_rate: of scales; None: the same for SGD, relative to the size of the scale for Adam and its kind.
        learning_rates: glob pattern of ONNX tensor names -> factor on the learning rate of the constants and scales of
            tensors that it matches, 0 to leave them as they are.
        weight_decay: of weights of two dimensions or more; scales and biases have none.
        ema: decay of a moving average of the weights, which is then evaluated and written; None: no average.

    Raises:
        UsageError: ``option-invalid``.
    """

    optimizer: str | optimizers.Make = "adamw"
    options: Mapping[str, Any] | None = None
    scale_learning_rate: float | None = None
    learning_rates: Mapping[str, float] | None = None
    weight_decay: float = 0.0
    ema: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.weight_decay < math.inf:
            raise UsageError("option-invalid", f"weight_decay is {self.weight_decay}; it must be finite and >= 0")
        if self.ema is not None and not 0 <= self.ema < 1:
            raise UsageError(
                "option-invalid", f"the decay of the moving average, ema, is {self.ema}; it lies in [0, 1)"
            )


@dataclasses.dataclass(frozen=True)
class ScheduleConfig:
    """A schedule of learning rates.

    Attributes:
        schedule: a file of ``onnxqat/training/schedules``: ``"cosine"``, ``"linear"``, ``"constant"``, ``"step"``,
            ``"multistep"`` or ``"plateau"``; or a function of step and length of the run that returns a factor.
        warmup_steps: first steps in which rates rise; None: a twentieth of the run.
        options: what the schedule has beyond that, such as ``{"milestones": [10, 15], "gamma": 0.1}``.
    """

    schedule: str | schedules.Factor = "cosine"
    warmup_steps: int | None = None
    options: Mapping[str, Any] | None = None


@dataclasses.dataclass(frozen=True)
class DistillationConfig:
    """Knowledge distillation: what is imitated.

    Attributes:
        teacher: a float model, a module that takes the same inputs, or a list of them; None as in ``finetune``.
        features: inner tensors to compare with the teacher's, too: their names, a dict of names where the teacher has
            others, or a :class:`onnxqat.training.objective.features.Features`. None: sums of branches where 2-bit grids round
            one and there are neither labels nor a loss of your own (:mod:`onnxqat.training.objective.joined_branches`).
    """

    teacher: Any = None
    features: Features | Names | None = None


@dataclasses.dataclass(frozen=True)
class ScoreConfig:
    """The score of a run: by it the best weights are chosen, and the run ends early.

    Attributes:
        score: a metric (:func:`onnxqat.metrics.names`) on samples that are held out of training, or a function of a
            :class:`onnxqat.metrics.Predictor`, also by its place ``"module:function"``: of the file that the module
            would be written as, in onnxruntime.
        evaluate: in place of it, a function of the module; higher is better.
        every: steps between two scores; None scores after each epoch.
        target: early stopping: the run ends once what is to be written scores at least so much.

    Raises:
        UsageError: ``option-invalid``.
    """

    score: ScoreSource | None = None
    evaluate: Callable[[nn.Module], float] | None = None
    every: int | None = None
    target: float | None = None

    def __post_init__(self) -> None:
        if self.every is not None and self.every < 1:
            raise UsageError("option-invalid", f"a score every {self.every} steps; it must be at least 1")
        if self.evaluate is not None and self.score is not None:
            raise UsageError("option-invalid", "evaluate and score are two scores of one run", hint="give one of them")
        for name in ("every", "target") if self.evaluate is None and self.score is None else ():
            if getattr(self, name) is not None:
                raise UsageError("option-invalid", f"{name} without a score", hint="give score or evaluate")


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """Files that a run writes on the way, and those that it goes on from.

    Attributes:
        folder: for ``last.safetensors`` and ``best.safetensors``; None writes none.
        save_every: steps between two writings of ``last.safetensors`` within an epoch.
        resume: go on from ``last.safetensors`` where it exists.
        black_box: folder for the first step whose loss or gradient is not finite; None: ``black_box`` in `folder`,
            else the output's name with ``.black_box`` behind it.
        skip_non_finite: so many such steps are left out before the run ends.

    Raises:
        UsageError: ``option-invalid``.
    """

    folder: str | os.PathLike[str] | None = None
    save_every: int | None = None
    resume: bool = False
    black_box: str | os.PathLike[str] | None = None
    skip_non_finite: int = 0

    def __post_init__(self) -> None:
        if self.save_every is not None and self.save_every < 1:
            raise UsageError("option-invalid", f"save_every is {self.save_every}; it must be at least 1")
        if self.skip_non_finite < 0:
            raise UsageError("option-invalid", f"skip_non_finite is {self.skip_non_finite}; it must be at least 0")
        for name in ("resume", "save_every") if self.folder is None else ():
            if getattr(self, name):
                raise UsageError(
                    "option-invalid",
                    f"{name} without a folder of checkpoints",
                    hint="give --checkpoint-dir, in Python the folder",
                )

    @property
    def path(self) -> Path | None:
        """The folder as a path."""
        return None if self.folder is None else Path(self.folder)

    def box(self, output: str | os.PathLike[str] | None) -> Path | None:
        """The folder of the black box of a run that writes `output`; None where there is no place for one."""
        if self.black_box is not None:
            return Path(self.black_box)
        if self.path is not None:
            return self.path / "black_box"
        return None if output is None else Path(f"{os.fspath(output)}.black_box")
