"""A streaming histogram whose contents do not depend on how the stream was cut into batches.

Bins are the intervals ``[i * w, (i + 1) * w)`` with ``w`` a power of two and ``-BINS <= i < BINS``. ``w`` follows
from the largest magnitude alone, and a bin of width ``2 w`` is exactly two bins of width ``w``, so growing merges
bins without error: one shot, any split, any order and any merge give the same counts. Exact zeros are counted
apart, because every quantizer reproduces them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from onnxqat.calibration.observers._base import BaseObserver
from onnxqat.types import FloatArray, IntArray

BINS = 4096
"""Bins a side of zero. The largest magnitude lies in the upper half, so 2048 to 4096 of them are in use."""

_SMALLEST_EXPONENT = -110
_CHUNK = 1 << 18


def exponent_of(magnitude: FloatArray) -> IntArray:
    """log2 of the bin width for a largest `magnitude`, shape (C,), int64.

    Bounded from below so that ``2 ** -exponent`` is a normal float32; values under 2**-98 share a few bins.
    """
    _, exponent = np.frexp(magnitude.astype(np.float64))
    exponent = np.where(magnitude == 0, _SMALLEST_EXPONENT, exponent - int(np.log2(BINS)))
    return np.asarray(np.maximum(exponent, _SMALLEST_EXPONENT), np.int64)


class HistogramObserver(BaseObserver):
    """An observer that looks at the distribution: a histogram a channel, of constant size.

    Attributes:
        counts: int64 (C, 2 * BINS), values other than zero; column ``BINS + i`` is bin i.
        zeros: int64 (C,), number of exact zeros.
        exponent: int64 (C,), log2 of the bin width.
    """

    counts: IntArray
    zeros: IntArray
    exponent: IntArray

    @property
    def width(self) -> npt.NDArray[np.float64]:
        """Bin width, float64, shape (C,)."""
        return np.asarray(np.ldexp(1.0, self.exponent.astype(np.int32)))

    def folded(self) -> IntArray:
        """Histogram of the magnitudes without zeros, int64 (C, BINS)."""
        return self.counts[:, BINS:] + self.counts[:, BINS - 1 :: -1]

    def _grow(self) -> None:
        """Merge bins until the current `low` and `high` fit."""
        channels = self.low.size
        exponent = exponent_of(np.maximum(np.abs(self.low), np.abs(self.high)))
        if not hasattr(self, "counts"):
            self.counts = np.zeros((channels, 2 * BINS), np.int64)
            self.zeros = np.zeros(channels, np.int64)
            self.exponent = exponent
            return
        self.counts = rebinned(self.counts, exponent - self.exponent)
        self.exponent = exponent

    def _accumulate(self, rows: npt.NDArray[Any]) -> None:
        self._grow()
        channels, length = rows.shape
        inverse = np.ldexp(np.float32(1), -self.exponent.astype(np.int32)).astype(np.float32)[:, None]
        base = (np.arange(channels, dtype=np.int64) * 2 * BINS + BINS)[:, None]
        flat = self.counts.reshape(-1)
        step = max(_CHUNK, flat.size) // channels
        for start in range(0, length, step):
            # A chunk fits the cache and bounds the temporaries, whatever the size of the tensor.
            chunk = rows[:, start : start + step].astype(np.float32)
            zeros = chunk.shape[1] - np.count_nonzero(chunk, axis=1)
            index = np.floor(chunk * inverse).astype(np.int64)
            index += base
            flat += np.bincount(index.reshape(-1), minlength=flat.size)
            self.counts[:, BINS] -= zeros
            self.zeros += zeros

    def _absorb(self, other: BaseObserver) -> None:
        assert isinstance(other, HistogramObserver)
        self._grow()
        self.counts = self.counts + rebinned(other.counts, self.exponent - other.exponent)
        self.zeros = self.zeros + other.zeros


def rebinned(counts: IntArray, shift: IntArray) -> IntArray:
    """`counts` (C, 2 * BINS) in bins that are ``2 ** shift`` times as wide, shift >= 0 of shape (C,)."""
    result = counts
    if not shift.any():
        return result
    result = counts.copy()
    source = np.arange(-BINS, BINS)
    for channel in np.flatnonzero(shift):
        target = (source >> min(int(shift[channel]), 62)) + BINS
        # Float64 sums are exact here: nobody observes 2**53 values.
        result[channel] = np.bincount(target, weights=counts[channel], minlength=2 * BINS).astype(np.int64)
    return result
