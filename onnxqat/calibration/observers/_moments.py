"""Mean and variance of a stream, in constant memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from onnxqat.calibration.observers._base import BaseObserver
from onnxqat.types import TensorSpec

Floats = npt.NDArray[np.float64]


class MomentsObserver(BaseObserver):
    """Count, mean and sum of squared deviations a channel, float64, merged by the formula of Chan et al. (1979).

    Another cut of the stream changes them by float64 rounding.
    """

    def __init__(self, spec: TensorSpec) -> None:
        super().__init__(spec)
        self._seen = 0
        self._mean: Floats = np.zeros(1)
        self._squares: Floats = np.zeros(1)

    @property
    def mean(self) -> Floats:
        """Mean, shape (C,)."""
        return self._mean

    @property
    def deviation(self) -> Floats:
        """Standard deviation (of the population), shape (C,)."""
        return np.asarray(np.sqrt(self._squares / max(self._seen, 1)))

    def _accumulate(self, rows: npt.NDArray[Any]) -> None:
        mean = rows.mean(axis=1, dtype=np.float64)
        squares = np.square(rows - mean[:, None], dtype=np.float64).sum(axis=1)
        self._combine(rows.shape[1], mean, squares)

    def _absorb(self, other: BaseObserver) -> None:
        assert isinstance(other, MomentsObserver)
        self._combine(other._seen, other._mean, other._squares)  # noqa: SLF001 - of the same class

    def _combine(self, count: int, mean: Floats, squares: Floats) -> None:
        total = self._seen + count
        gap = mean - self._mean
        self._squares = self._squares + squares + gap * gap * (self._seen * count / total)
        self._mean = self._mean + gap * (count / total)
        self._seen = total
