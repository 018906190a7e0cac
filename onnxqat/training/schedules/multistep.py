"""Multistep: the learning rate falls at given epochs (``torch.optim.lr_scheduler.MultiStepLR``)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from onnxqat.errors import UsageError
from onnxqat.training.optim.schedule import WarmedUp


@dataclasses.dataclass
class Schedule(WarmedUp):
    """A factor for each milestone that is passed.

    Attributes:
        milestones: epochs, counted from the start of the run; None: after a half and three quarters of its steps.
        gamma: the factor.
    """

    milestones: Sequence[float] | None = None
    gamma: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        found = self.milestones
        if found is not None and not all(isinstance(m, (int, float)) and m > 0 for m in found):
            raise UsageError("option-invalid", f"milestones are epochs > 0, not {found!r}")
        self._steps = (
            [self.total_steps * 0.5, self.total_steps * 0.75] if found is None else [self.in_steps(m) for m in found]
        )

    def decayed(self, done: int, steps: int) -> float:
        """See the base class."""
        step = done + self.warmup_steps
        return float(self.gamma) ** sum(step >= milestone for milestone in self._steps)
