"""Constant: the full learning rate from the warm-up to the end."""

from __future__ import annotations

import dataclasses

from onnxqat.training.optim.schedule import WarmedUp


@dataclasses.dataclass
class Schedule(WarmedUp):
    """No decay."""

    def decayed(self, done: int, steps: int) -> float:
        """See the base class."""
        return 1.0
