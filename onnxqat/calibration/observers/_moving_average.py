"""Moving averages over batches: the last batches count most."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxqat.calibration.observers._base import BaseObserver
from onnxqat.types import TensorSpec

RATE = 0.9
"""Share of the average that stays at each batch, as in PaddleSlim and MQBench."""

Ends = tuple[npt.NDArray[Any], npt.NDArray[Any]]


class MovingAverageObserver(BaseObserver):
    """The exponential moving average of what each batch spans, with a start that is not biased towards zero.

    After n batches the average is ``sum(rate**(n-1-i) * x[i]) / sum(rate**(n-1-i))``, so that one batch gives its own
    range and two nearly the mean. Batches in another order give another range. Merging takes the outer ends of two
    averages: tensors that share parameters are covered both, and so are the shares of several processes.

    Args:
        spec: how the tensor is to be quantized.
        rate: share of the average that stays at each batch, at least 0 and under 1.
    """

    depends_on_batches = True

    def __init__(self, spec: TensorSpec, rate: float = RATE) -> None:
        if not 0 <= rate < 1:
            raise ValueError(f"a rate of {rate}; it must be at least 0 and under 1")
        super().__init__(spec)
        self.rate = rate
        self._weight = 0.0
        self._sums: Ends = (np.zeros(1), np.zeros(1))

    def _accumulate(self, rows: npt.NDArray[Any]) -> None:
        ends = self._ends(rows)
        self._sums = tuple(s * self.rate + e.astype(np.float64) for s, e in zip(self._sums, ends, strict=True))  # type: ignore[assignment]
        self._weight = self._weight * self.rate + 1

    def _absorb(self, other: BaseObserver) -> None:
        assert isinstance(other, MovingAverageObserver)
        theirs = other._average()  # noqa: SLF001 - of the same class
        low, high = self._average() if self._weight else theirs
        self._weight = max(self._weight, other._weight)  # noqa: SLF001
        self._sums = np.minimum(low, theirs[0]) * self._weight, np.maximum(high, theirs[1]) * self._weight

    def _average(self) -> Ends:
        low, high = (s / self._weight for s in self._sums)
        return low, high

    def _clipped(self) -> Ends:
        low, high = self._average()
        return np.clip(low, self.low, self.high), np.clip(high, self.low, self.high)

    @abstractmethod
    def _ends(self, rows: npt.NDArray[Any]) -> Ends:
        """Lower and upper end of the range for one batch, shape (C,) each."""
