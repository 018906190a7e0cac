"""Protocol of learning-rate schedules, the warm-up that all of them have, and the setting of rates."""

from __future__ import annotations

import abc
import dataclasses
from typing import Protocol

from torch.optim import Optimizer

from onnxqat.errors import UsageError


class Schedule(Protocol):
    """Factor on every group's initial learning rate, by step.

    A schedule may also have ``observe(score: float)``, called after each epoch with the score, higher is better, and
    ``state_dict()`` and ``load_state_dict(state)`` of JSON values and tensors, which checkpoints then hold.
    """

    @property
    def total_steps(self) -> int:
        """Length of the run."""

    def factor(self, step: int) -> float:
        """The factor for step `step`, counted from 0."""


@dataclasses.dataclass
class WarmedUp(abc.ABC):
    """A linear warm-up, then :meth:`decayed`; the base of ``onnxqat/training/schedules``.

    Steps ``0 .. warmup_steps - 1`` rise linearly and never are 0.

    Attributes:
        total_steps: length of the run.
        warmup_steps: how many of them are warm-up.
        steps_per_epoch: None where the length of the data is not known.
    """

    total_steps: int
    warmup_steps: int = 0
    steps_per_epoch: int | None = None

    def __post_init__(self) -> None:
        if self.warmup_steps < 0:
            raise UsageError("option-invalid", f"there are {self.warmup_steps} steps of warm-up; it must be >= 0")

    def factor(self, step: int) -> float:
        """The factor for step `step`, counted from 0."""
        if step < self.warmup_steps:
            return (step + 1) / (self.warmup_steps + 1)
        return self.decayed(step - self.warmup_steps, max(1, self.total_steps - self.warmup_steps))

    @abc.abstractmethod
    def decayed(self, done: int, steps: int) -> float:
        """The factor after `done` of the `steps` steps behind the warm-up."""

    def in_steps(self, epochs: float) -> float:
        """`epochs` as a number of steps.

        Raises:
            UsageError: ``option-invalid`` where the length of the data is not known.
        """
        if self.steps_per_epoch is None:
            raise UsageError(
                "option-invalid",
                "the schedule counts epochs, and the length of the data is not known",
                hint="leave its epochs out, or choose cosine, linear or constant",
            )
        return epochs * self.steps_per_epoch


def set_rates(optimizer: Optimizer, factor: float) -> dict[str, float]:
    """Set the learning rate of each group to `factor` times what it was at first; returns them by name or number."""
    rates = {}
    for index, group in enumerate(optimizer.param_groups):
        group.setdefault("initial_lr", group["lr"])
        group["lr"] = group["initial_lr"] * factor
        rates[str(group.get("name", index))] = float(group["lr"])
    return rates
