"""The range whose quantized distribution diverges least from the one seen (Kullback-Leibler)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from onnxqat.calibration.observers._histogram import BINS, HistogramObserver
from onnxqat.calibration.observers._searched import once
from onnxqat.types import FloatArray, IntArray

_JOINT = np.linspace(1, 0, 129)[:-1]
_ROUNDS = 2
_NUMBERS = 1 << 15  # levels of candidates tried together: more fall out of the cache, which takes five times as long
_LOGS = np.log(np.maximum(np.arange(2 * BINS + 1), 1))  # of numbers of bins; that of 0 is read where nothing is inside


class Observer(HistogramObserver):
    """TensorRT's entropy calibration, on 2048 to 4096 bins, for grids of any width and asymmetric ranges.

    A candidate range is a run of bins at least as long as the number of levels. The reference P is the
    histogram inside, with everything outside added to the outermost bin; Q is the histogram inside, merged to
    as many levels as the grid has and spread again over the occupied bins. Exact zeros are left out: they cost
    nothing at any scale. Symmetric specs look at magnitudes and the non-negative levels; asymmetric ones at
    both ends, first together, then each in turn. A grid with more levels than occupied bins (16 bits) keeps the
    whole range. Channels are searched one after the other, each vectorised over its candidates.
    """

    def _clipped(self) -> tuple[FloatArray, FloatArray]:
        return once(self, (Observer, self.spec.but()), self._search)

    def _search(self) -> tuple[FloatArray, FloatArray]:
        qtype = self.spec.qtype
        low, high = self.low.copy(), self.high.copy()
        width = self.width
        if self.spec.symmetric:
            negative = qtype.quant_max if qtype.quant_min < 0 else qtype.quant_max // 2
            levels = negative + 1
            for channel, counts in enumerate(self.folded()):
                threshold = _stop(counts, 0, levels) * width[channel]
                low[channel] = np.clip(-threshold, self.low[channel], self.high[channel])
                high[channel] = np.clip(threshold, self.low[channel], self.high[channel])
        else:
            levels = qtype.quant_max - qtype.quant_min + 1
            for channel, counts in enumerate(self.counts):
                start, stop = _window(counts, levels)
                ends = np.array([start - BINS, stop - BINS]) * width[channel]
                low[channel], high[channel] = np.clip(ends, self.low[channel], self.high[channel])
        return low, high


def _window(counts: IntArray, levels: int) -> tuple[int, int]:
    """Best run of bins of the signed histogram; it contains zero."""
    used = np.flatnonzero(counts)
    if not used.size:
        return BINS, BINS
    start, stop = min(int(used[0]), BINS), max(int(used[-1]) + 1, BINS)
    if start < BINS < stop:
        joint = np.unique(np.rint(np.outer([BINS - start, stop - BINS], _JOINT)).astype(np.int64), axis=1)
        starts, stops = _snap(counts, BINS - joint[0], BINS + joint[1])
        start, stop = _best(counts, starts, stops, levels, (start, stop))
    for _ in range(_ROUNDS):
        before = start
        if stop > BINS:
            stop = _stop(counts, start, levels, first=BINS)
        if start < BINS:
            start = 2 * BINS - _stop(counts[::-1], 2 * BINS - stop, levels, first=BINS)
        if start == before:  # each end follows from the other, so all further rounds give the same
            break
    return start, stop


def _snap(counts: IntArray, starts: IntArray, stops: IntArray) -> tuple[IntArray, IntArray]:
    """Shorten runs to occupied outermost bins, but not beyond zero."""
    index = np.arange(counts.size)
    following = np.minimum.accumulate(np.where(counts > 0, index, counts.size)[::-1])[::-1]
    preceding = np.maximum.accumulate(np.where(counts > 0, index, -1))
    starts = np.minimum(following[np.clip(starts, 0, counts.size - 1)], BINS)
    stops = np.maximum(preceding[np.clip(stops - 1, 0, counts.size - 1)] + 1, BINS)
    return starts, stops


def _stop(counts: IntArray, start: int, levels: int, first: int = 0) -> int:
    """Best end (exclusive) of a run of bins from `start`, among the occupied bins from `first` on."""
    used = np.flatnonzero(counts[first:]) + first + 1
    if not used.size:
        return first
    return _best(counts, np.full(used.size, start), used, levels, (start, int(used[-1])))[1]


def _best(
    counts: IntArray, starts: IntArray, stops: IntArray, levels: int, default: tuple[int, int]
) -> tuple[int, int]:
    """The run with the least divergence, the widest of equals; `default` where no run has enough bins."""
    enough = stops - starts >= levels
    starts, stops = starts[enough], stops[enough]
    if not starts.size:
        return default
    order = np.argsort(starts - stops, kind="stable")
    starts, stops = starts[order], stops[order]
    best = int(np.argmin(_divergences(counts, starts, stops, levels)))
    return int(starts[best]), int(stops[best])


def _divergences(counts: IntArray, starts: IntArray, stops: IntArray, levels: int) -> npt.NDArray[Any]:
    """KL(P || Q) of each run ``starts[k]:stops[k]``, by prefix sums: a candidate costs its levels, not its bins.

    With outliers in a level that has no values of its own, the divergence is infinite.
    """
    mass = np.concatenate([[0], np.cumsum(counts)]).astype(np.float64)
    occupied = np.concatenate([[0], np.cumsum(counts > 0)])
    plogp = np.concatenate([[0], np.cumsum(_xlogx(counts))])
    total = mass[-1]
    inside = mass[stops] - mass[starts]
    below, above = mass[starts], total - mass[stops]
    cross = np.empty(len(starts))
    together = max(1, _NUMBERS // (levels + 1))
    with np.errstate(divide="ignore", invalid="ignore"):
        for first in range(0, len(starts), together):
            part = slice(first, first + together)
            bounds = np.arange(levels + 1) * (stops - starts)[part, None]
            bounds //= levels
            bounds += starts[part, None]
            reference = np.diff(mass.take(bounds), axis=1)
            density = np.log(reference)
            density -= _LOGS.take(np.diff(occupied.take(bounds), axis=1))
            density -= np.log(inside[part, None])
            reference[:, 0] += below[part]
            reference[:, -1] += above[part]
            density *= reference
            density[reference == 0] = 0.0  # 0 log 0
            cross[part] = density.sum(axis=1)
    first_counts, last_counts = counts[starts], counts[stops - 1]
    entropy = plogp[stops] - plogp[starts]
    entropy = entropy - _xlogx(first_counts) + _xlogx(first_counts + below)
    entropy = entropy - _xlogx(last_counts) + _xlogx(last_counts + above)
    divergence = (entropy - cross) / total - np.log(total)
    return np.where(np.isfinite(divergence), divergence, np.inf)


def _xlogx(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    values = np.asarray(values, np.float64)
    return np.asarray(values * np.log(np.maximum(values, 1)))
