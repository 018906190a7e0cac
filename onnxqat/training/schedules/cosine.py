"""Cosine: half a cosine from the full learning rate down (Loshchilov and Hutter, "SGDR", 2017, without restarts)."""

from __future__ import annotations

import dataclasses
import math

from onnxqat.training.optim.schedule import WarmedUp


@dataclasses.dataclass
class Schedule(WarmedUp):
    """Half a cosine over what the warm-up leaves.

    Attributes:
        final_factor: where it ends.
    """

    final_factor: float = 0.0

    def decayed(self, done: int, steps: int) -> float:
        """See the base class."""
        cosine = 0.5 * (1.0 + math.cos(math.pi * min(1.0, done / steps)))
        return self.final_factor + (1.0 - self.final_factor) * cosine
