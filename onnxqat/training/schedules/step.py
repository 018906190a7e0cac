"""Step: the learning rate falls every so many epochs (``torch.optim.lr_scheduler.StepLR``)."""

from __future__ import annotations

import dataclasses

from onnxqat.errors import UsageError
from onnxqat.training.optim.schedule import WarmedUp


@dataclasses.dataclass
class Schedule(WarmedUp):
    """A factor every `step_size` epochs.

    Attributes:
        step_size: epochs; None: a third of the run's steps, as 30 of 90 epochs.
        gamma: the factor.
    """

    step_size: float | None = None
    gamma: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.step_size is not None and not self.step_size > 0:
            raise UsageError("option-invalid", f"step_size is {self.step_size}; it must be > 0")
        self._length = self.total_steps / 3 if self.step_size is None else self.in_steps(self.step_size)

    def decayed(self, done: int, steps: int) -> float:
        """See the base class."""
        return float(self.gamma) ** int((done + self.warmup_steps) / self._length)
