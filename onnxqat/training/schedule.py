"""The learning rate over the run: linear warm-up, then a half cosine. A function of the step, so nothing to resume."""

from __future__ import annotations

import dataclasses
import math
from typing import Protocol

from torch.optim import Optimizer


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


def set_rates(optimizer: Optimizer, factor: float) -> dict[str, float]:
    """Set the learning rate of each group to `factor` times what it was at first; returns them by name or number."""
    rates = {}
    for index, group in enumerate(optimizer.param_groups):
        group.setdefault("initial_lr", group["lr"])
        group["lr"] = group["initial_lr"] * factor
        rates[str(group.get("name", index))] = float(group["lr"])
    return rates


@dataclasses.dataclass(frozen=True)
class CosineSchedule:
    """Factor on every group's initial learning rate.

    Steps ``0 .. warmup_steps - 1`` rise linearly and never are 0; the rest falls along a half cosine (Loshchilov and
    Hutter, "SGDR", 2017, without restarts) to `final_factor` after the last step.

    Attributes:
        total_steps: length of the run.
        warmup_steps: how many of them are warm-up.
        final_factor: where the cosine ends.
    """

    total_steps: int
    warmup_steps: int = 0
    final_factor: float = 0.0

    def factor(self, step: int) -> float:
        """The factor for step `step`, counted from 0."""
        if step < self.warmup_steps:
            return (step + 1) / (self.warmup_steps + 1)
        done = (step - self.warmup_steps) / max(1, self.total_steps - self.warmup_steps)
        cosine = 0.5 * (1.0 + math.cos(math.pi * min(1.0, done)))
        return self.final_factor + (1.0 - self.final_factor) * cosine
