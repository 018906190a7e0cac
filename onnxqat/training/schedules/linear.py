"""Linear: a straight line from the full learning rate down."""

from __future__ import annotations

import dataclasses

from onnxqat.training.optim.schedule import WarmedUp


@dataclasses.dataclass
class Schedule(WarmedUp):
    """A straight line over what the warm-up leaves.

    Attributes:
        final_factor: where it ends.
    """

    final_factor: float = 0.0

    def decayed(self, done: int, steps: int) -> float:
        """See the base class."""
        return 1.0 + (self.final_factor - 1.0) * min(1.0, done / steps)
