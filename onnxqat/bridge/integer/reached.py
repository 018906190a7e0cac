"""Record of what a layer on codes met in data: how far its sums reach, and the steps of each input channel."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from onnxqat.arithmetic._arrays import Array, counts_above, largest
from onnxqat.arithmetic._base import WIDTHS


class Reached:
    """Sums and inputs of one layer over batches; holds no batch.

    Attributes:
        largest: largest magnitude of a sum.
        sums: number of sums.
        beyond: sums that leave an accumulator, by its bits.
        low: smallest step of each input channel, int64 (C,); of all of them, (), where batches have different C; None
            before any data.
        high: largest step of each.
    """

    low: npt.NDArray[np.int64] | None = None
    high: npt.NDArray[np.int64] | None = None

    def __init__(self) -> None:
        self.largest = 0.0
        self.sums = 0
        self.beyond = dict.fromkeys(WIDTHS, 0)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Reached):
            return NotImplemented
        mine, theirs = ((r.largest, r.sums, r.beyond) for r in (self, other))
        pairs = ((self.low, other.low), (self.high, other.high))
        return mine == theirs and all(np.array_equal(a, b) for a, b in pairs)  # type: ignore[arg-type]

    def add_sums(self, total: Array) -> None:
        """Take in sums of a batch, whole numbers in float."""
        here = largest(total)
        self.largest = max(self.largest, here)
        self.sums += int(np.prod(total.shape))
        for width in WIDTHS:
            limit = 2 ** (width - 1) - 1
            if here > limit:
                self.beyond[width] += counts_above(total, limit)

    def add_steps(self, steps: npt.NDArray[Any], axis: int) -> None:
        """Take in the input of a batch, whose channels lie along `axis`."""
        if not steps.size:
            return
        others = tuple(i for i in range(steps.ndim) if i != axis % steps.ndim)
        low, high = (np.asarray(end(axis=others), np.int64) for end in (steps.min, steps.max))
        if self.low is not None and self.high is not None:
            if low.shape != self.low.shape:  # a product over a computed length: which row is which is unknown
                low, high, self.low, self.high = low.min(), high.max(), self.low.min(), self.high.max()
            low, high = np.minimum(self.low, low), np.maximum(self.high, high)
        self.low, self.high = np.asarray(low), np.asarray(high)
