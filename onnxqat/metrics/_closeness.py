"""Closeness of two arrays, summed up batch by batch: cosine, signal to noise, squared error, steps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxqat.calibration.noise import decibels

Array = npt.NDArray[Any]


class Difference:
    """Sums of one pair of tensors over batches; holds no batch. Sums are float64."""

    def __init__(self) -> None:
        self.max_abs = 0.0
        self.largest = 0.0
        self.non_finite = 0
        self.elements = 0
        self._signal = self._noise = 0.0

    def update(self, value: npt.NDArray[Any], reference: npt.NDArray[Any]) -> None:
        """Add one batch of arrays of equal shape; non-finite values of `value` are counted and left out.

        A string that differs counts as a difference of 1.
        """
        if value.dtype.kind in "OU":
            value, reference = (value == reference).astype(np.float32), np.ones(value.shape, np.float32)
        x, ref = np.asarray(value, np.float64).ravel(), np.asarray(reference, np.float64).ravel()
        self.elements += x.size
        finite = np.isfinite(x)
        if not finite.all():
            self.non_finite += int(x.size - finite.sum())
        finite &= np.isfinite(ref)
        if not finite.all():
            x, ref = x[finite], ref[finite]
        if not x.size:
            return
        difference = x - ref
        self.max_abs = max(self.max_abs, float(np.abs(difference).max()))
        self.largest = max(self.largest, float(np.abs(ref).max()))
        self._signal += float(ref @ ref)
        self._noise += float(difference @ difference)

    @property
    def sqnr_db(self) -> float:
        """Signal to noise in dB; infinite without noise, minus infinite without signal, NaN without values."""
        if not self.elements:
            return math.nan
        return decibels(self._signal, self._noise)


class Closeness(Difference):
    """A :class:`Difference` that knows cosine, mean squared error and the largest difference in LSB as well.

    Args:
        step: size of an LSB, the scale, broadcast against the arrays; None where there is no grid.
    """

    def __init__(self, step: Array | None = None) -> None:
        super().__init__()
        self.step = step
        self._product = self._square = 0.0
        self._steps: float | None = None if step is None else 0.0

    def update(self, value: Array, reference: Array) -> None:
        """Add one batch of arrays of equal shape."""
        super().update(value, reference)
        x, ref = np.asarray(value, np.float64), np.asarray(reference, np.float64)
        finite = np.isfinite(x) & np.isfinite(ref)
        if self.step is not None and self._steps is not None and x.size:
            with np.errstate(invalid="ignore"):
                apart = np.where(finite, np.abs(x - ref), 0.0) / self.step
            self._steps = max(self._steps, float(apart.max()))
        x, ref = x[finite], ref[finite]
        self._product += float(x @ ref)
        self._square += float(x @ x)

    @property
    def cosine(self) -> float:
        """Cosine of the angle between all values and all references, 1 where both are 0; NaN without values."""
        if not self.elements:
            return math.nan
        length = math.sqrt(self._square * self._signal)
        if length:
            return min(self._product / length, 1.0)
        return 1.0 if self._square == self._signal else 0.0

    @property
    def mse(self) -> float:
        """Mean squared difference; NaN without values."""
        return self._noise / self.elements if self.elements else math.nan

    @property
    def steps(self) -> float | None:
        """Largest difference in LSB; None where there is no grid."""
        return self._steps
