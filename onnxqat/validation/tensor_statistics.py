"""Statistics of the values that a quantizer rounds: range, percentiles, histogram, saturation, dead channels, codes.

They are summed up batch by batch, in memory that does not grow with the data.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxqat import numerics
from onnxqat.calibration.observers._histogram import BINS as FINE_BINS
from onnxqat.calibration.observers._histogram import HistogramObserver
from onnxqat.types import QParams, QType, TensorSpec

Array = npt.NDArray[Any]

BINS = 128
"""Bins of a histogram, of equal width between the smallest and the largest value."""
PERCENTILES = (0.1, 1.0, 50.0, 99.0, 99.9)
_COUNTED_BITS = 16  # codes of wider grids, the biases' int32, are not counted one by one
_CHUNK = 1 << 20  # values looked at in one go: bounds the temporaries


@dataclasses.dataclass(frozen=True)
class TensorStatistics:
    """Values of one tensor, as its quantizer gets them with all quantizers off.

    Attributes:
        low: smallest value.
        high: largest value.
        percentiles: value below which that many percent lie, by the number as text: ``"0.1"`` to ``"99.9"``; accurate
            to 1/2048 of the largest magnitude.
        histogram: numbers of values in :data:`BINS` bins of equal width from `low` to `high`.
        saturated: share of the values outside of the grid, 0..1.
        channels: number of channels: along the quantizer's axis, else axis 1 of activations and 0 of weights with four
            axes and more, and the last one elsewhere.
        dead_channels: those of them that are zero in all samples.
        codes: number of codes of the grid; None for floats, and for grids of more than 16 bits.
        unused_codes: those of them that no value has.
        values: number of values.
    """

    low: float
    high: float
    percentiles: dict[str, float]
    histogram: tuple[int, ...]
    saturated: float
    channels: int
    dead_channels: int
    codes: int | None
    unused_codes: int | None
    values: int


class StatisticsMeter:
    """Collects :class:`TensorStatistics` of one quantizer.

    Args:
        qparams: grid, scale and zero point.
        is_weight: whether axis 0 is that of the channels, where the quantizer has none.
    """

    def __init__(self, qparams: QParams, *, is_weight: bool) -> None:
        self._qparams, self._is_weight = qparams, is_weight
        self._histogram = _Histogram()
        self._alive = np.zeros(0, bool)
        self._saturated = 0
        grid = qparams.qtype
        counted = not grid.is_float and grid.bits <= _COUNTED_BITS
        self._used = np.zeros(grid.quant_max - grid.quant_min + 1, bool) if counted else None

    def update(self, values: Array) -> None:
        """Take in one batch, float, of any shape; what is not finite is left out."""
        if not values.size:
            return
        self._histogram.update(values[np.isfinite(values)])
        alive = _nonzero_channels(values, self._axis(values.ndim))
        self._alive = alive | self._alive if self._alive.size == alive.size else alive
        # Only a grid of one scale can be cut, and a scalar has no axis to cut along.
        one_scale = self._qparams.scale.size == 1 and self._qparams.axis is None
        parts = [values]
        if one_scale and values.size > _CHUNK:
            parts = np.array_split(values.reshape(-1), -(-values.size // _CHUNK))
        for part in parts:
            self._count_codes(part)

    def result(self) -> TensorStatistics | None:
        """Return the statistics of all batches so far; None before any value."""
        seen = self._histogram
        if not seen.count:
            return None
        used = self._used
        return TensorStatistics(
            low=float(seen.low[0]),
            high=float(seen.high[0]),
            percentiles={f"{share:g}": seen.percentile(share) for share in PERCENTILES},
            histogram=seen.bins(BINS),
            saturated=self._saturated / seen.count,
            channels=self._alive.size,
            dead_channels=int((~self._alive).sum()),
            codes=None if used is None else used.size,
            unused_codes=None if used is None else int((~used).sum()),
            values=seen.count,
        )

    def _axis(self, rank: int) -> int:
        if self._qparams.axis is not None:
            return self._qparams.axis
        if rank < 4:
            return -1
        return 0 if self._is_weight else 1

    def _count_codes(self, values: Array) -> None:
        grid = self._qparams.qtype
        with np.errstate(over="ignore", invalid="ignore"):
            steps = np.asarray(values, np.float32) / numerics.spread(self._qparams.scale, self._qparams, values.shape)
        if grid.is_float:
            self._saturated += int(((steps < grid.quant_min) | (steps > grid.quant_max)).sum())
            return
        codes = np.rint(steps) + numerics.spread(self._qparams.zero_point, self._qparams, values.shape)
        codes = codes[np.isfinite(codes)]
        outside = (codes < grid.quant_min) | (codes > grid.quant_max)
        self._saturated += int(outside.sum())
        if self._used is not None:
            self._used[(np.clip(codes, grid.quant_min, grid.quant_max) - grid.quant_min).astype(np.int64)] = True


def _nonzero_channels(values: Array, axis: int) -> npt.NDArray[np.bool_]:
    if not values.ndim:
        return np.asarray(values != 0).reshape(1)
    others = tuple(i for i in range(values.ndim) if i != axis % values.ndim)
    return np.asarray((values != 0).any(axis=others))


class _Histogram(HistogramObserver):
    """The fine histogram that observers fill, which grows with the range, read as percentiles and coarse bins."""

    def __init__(self) -> None:
        super().__init__(TensorSpec(QType.of(8, signed=True)))

    def _clipped(self) -> tuple[Array, Array]:
        return self.low, self.high

    def _counts(self) -> npt.NDArray[np.int64]:
        """Counts of all fine bins, zeros among those of bin 0."""
        counts: npt.NDArray[np.int64] = self.counts[0].copy()
        counts[FINE_BINS] += self.zeros[0]
        return counts

    def percentile(self, percent: float) -> float:
        """Return the value below which `percent` of the values lie, interpolated inside of its fine bin."""
        counts = self._counts()
        before = np.concatenate([[0], np.cumsum(counts)])
        wanted = self.count * percent / 100
        index = min(int(np.searchsorted(before[1:], wanted)), counts.size - 1)
        part = (wanted - before[index]) / max(int(counts[index]), 1)
        value = (index - FINE_BINS + part) * float(self.width[0])
        return float(np.clip(value, self.low[0], self.high[0]))

    def bins(self, number: int) -> tuple[int, ...]:
        """Return the counts of `number` bins of equal width over the range; a fine bin goes where its centre lies."""
        low, high = float(self.low[0]), float(self.high[0])
        centres = (np.arange(-FINE_BINS, FINE_BINS) + 0.5) * float(self.width[0])
        centres[FINE_BINS] = centres[FINE_BINS] if self.counts[0, FINE_BINS] else 0.0
        span = high - low
        place = (centres - low) / span * number if span > 0 and math.isfinite(span) else np.zeros_like(centres)
        index = np.clip(np.floor(place), 0, number - 1).astype(np.int64)
        counts = np.bincount(index, weights=self._counts(), minlength=number)
        return tuple(int(count) for count in counts)
