"""The processes that train together: here one; :mod:`onnxqat.training.distributed` has the class for more."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager

from torch import Tensor, nn


class World:
    """One process. The loop asks it whatever differs between one process and several.

    Attributes:
        rank: number of this process.
        size: how many there are.
    """

    rank = 0
    size = 1

    @property
    def writer(self) -> bool:
        """Whether this process writes files and reports progress: one of them does."""
        return self.rank == 0

    def wrap(self, module: nn.Module) -> nn.Module:
        """What to call in place of `module`, so that backward leaves the mean gradient over all processes."""
        return module

    def accumulating(self, forward: nn.Module) -> AbstractContextManager[None]:
        """For backward passes whose gradients are added up here first; `forward` is what :meth:`wrap` returned."""
        return contextlib.nullcontext()

    def total(self, values: Tensor) -> Tensor:
        """The sum of `values` over all processes, the same in each of them; nothing is waited for on a GPU."""
        return values

    def agreed(self, value: float) -> float:
        """The `value` of process 0, in each of them."""
        return value
