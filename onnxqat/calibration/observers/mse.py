"""The range with the smallest expected squared quantization error."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxqat.analysis.read_curves import Curve, HardSigmoid
from onnxqat.calibration.observers._histogram import BINS, HistogramObserver
from onnxqat.calibration.observers._search import ErrorOf, least_error_range
from onnxqat.calibration.observers._searched import once
from onnxqat.types import QParams

_Floats = npt.NDArray[Any]

_MERGED = 4
"""Bins taken together in the search: 8 of them still make a step of 8 bits, and it is as much faster."""


class Observer(HistogramObserver):
    """Searches shrink factors of both ends on the histogram, with the very grid that the spec leads to.

    Values are taken as spread evenly over their bin, and the error is integrated exactly, so that the search is
    right for 2 bits (a step spans many bins) and for 16 (a bin spans many steps) alike. Vectorised over channels.

    Attributes:
        curve: function that alone reads the values, and behind which the error counts; None for that of the values.
    """

    curve: Curve | None = None

    def _rule(self) -> tuple[Hashable, ...]:
        return (*super()._rule(), self.curve)

    def _clipped(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        if not self.counts.any():
            return self.low, self.high
        rule = (Observer, self.spec.but(), self.curve)
        return once(self, rule, lambda: least_error_range(self.low, self.high, self.spec, *self._error()))

    def _error(self) -> tuple[ErrorOf, int]:
        """The expected squared error of each channel as a function of its parameters, and the bins that it looks at."""
        merged = self.counts.reshape(len(self.counts), -1, _MERGED).sum(axis=2)
        used = np.flatnonzero(merged.any(axis=0))
        first, last = (used[0], used[-1] + 1) if used.size else (0, 1)
        edges = np.arange(first, last + 1) - BINS // _MERGED
        counts = merged[:, first:last].astype(np.float64)
        width = self.width[:, None] * _MERGED
        line = self.curve if isinstance(self.curve, HardSigmoid) else None
        slopes = None if self.curve is None else _SquaredSlopes(self.curve, edges * width)

        def error(qparams: QParams) -> npt.NDArray[Any]:
            shape = (-1, len(counts), 1)  # candidates, channels, bins
            scale = qparams.scale.astype(np.float64).reshape(shape)
            zero_point = qparams.zero_point.reshape(shape)
            ends = (qparams.qtype.quant_min - zero_point, qparams.qtype.quant_max - zero_point)
            steps = edges * (width / scale)
            nearest = np.rint(steps)
            np.maximum(nearest, ends[0], out=nearest)
            np.minimum(nearest, ends[1], out=nearest)
            rounding = None if line is None else counts * _rounded_behind(line, nearest[..., :-1] * scale, ends)
            # Antiderivative of (x - x')**2 in steps: 1/12 for each whole cell, and a cube for the rest of this one. In
            # place, since a search spends its time here.
            steps -= nearest
            cubes = steps * steps
            cubes *= steps
            cubes /= 3
            nearest /= 12
            nearest += cubes
            errors = np.subtract(nearest[..., 1:], nearest[..., :-1], out=steps[..., 1:])
            errors *= counts
            if slopes is not None:
                errors *= slopes(ends[0] * scale, ends[1] * scale)
            sums = errors.sum(axis=-1) * (scale**3 / width)[..., 0]
            return np.asarray(sums if rounding is None else sums + rounding.sum(axis=-1)).reshape(-1)

        return error, counts.size


def _rounded_behind(curve: Curve, values: _Floats, ends: tuple[_Floats, _Floats]) -> _Floats:
    """Squared error of rounding what `curve` makes of `values` to as many codes as `ends` are apart, over [0, 1].

    With 255 steps on the window of a HardSigmoid, each result is half-way between two codes: the largest error there
    is, and kernels round it to either side.
    """
    codes = np.asarray(curve(values) * (ends[1] - ends[0]))
    return np.asarray(((codes - np.rint(codes)) / (ends[1] - ends[0])) ** 2)


class _SquaredSlopes:
    """Factors that make the squared error behind a function of the one in front of it, for each bin.

    They are the squared slope at the bin, and for what is cut off that of the line from there to the end of the grid.

    Args:
        curve: the function.
        edges: of the bins, (C, bins + 1).
    """

    def __init__(self, curve: Curve, edges: _Floats) -> None:
        self._curve = curve
        self._middle = (edges[:, :-1] + edges[:, 1:]) / 2
        self._behind = curve(self._middle)
        self._inside = np.diff(curve(edges), axis=-1) / np.diff(edges, axis=-1)

    def __call__(self, low: _Floats, high: _Floats) -> _Floats:
        """Factors, float64 (candidates, C, bins), for grids from `low` to `high`, (candidates, C, 1) each."""
        slopes = self._inside
        for end, outside in ((low, self._middle < low), (high, self._middle > high)):
            gap = np.where(outside, self._middle - end, 1)
            slopes = np.where(outside, (self._behind - self._curve(end)) / gap, slopes)
        return np.asarray(slopes * slopes)
