"""Search for the clipping range with the least error, vectorised over channels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from onnxqat import numerics
from onnxqat.types import FloatArray, QParams, TensorSpec

ErrorOf: TypeAlias = Callable[[QParams], npt.NDArray[Any]]
_Floats: TypeAlias = npt.NDArray[Any]

# Linear near 1, where the optimum of 8 bits lies; geometric below, for outliers far beyond the rest. With the finer
# factors around the best, steps are 0.005 and 5 %.
FACTORS: _Floats = np.concatenate([np.linspace(1, 0.26, 38), np.geomspace(0.26, 2.0**-9, 20)[1:]])
_FINE = np.linspace(-0.75, 0.75, 7)
_ROUNDS = 2
_NUMBERS = 1 << 15  # of candidates tried together: more fall out of the cache, and one by one they wait for Python


def tried_together(size: int) -> int:
    """Candidates in one call of an error function that takes `size` numbers for each."""
    return max(1, _NUMBERS // max(1, size))


def least_error_range(
    low: FloatArray, high: FloatArray, spec: TensorSpec, error: ErrorOf, size: int, least: ErrorOf | None = None
) -> tuple[_Floats, _Floats]:
    """The sub-range of ``[low, high]`` (shape (C,)) whose quantizer has the least error, channel by channel.

    Symmetric specs shrink the threshold; asymmetric ones shrink both ends together (in proportion, and to one
    threshold, which is where the way from an outlier on one side must begin), then each in turn. The widest of
    equally good ranges wins.

    Args:
        low: exact minima.
        high: exact maxima.
        spec: grid, symmetry and power-of-two rule of the quantizer.
        error: error of each channel for per-channel parameters (axis 0): those of one candidate behind those of
            another, shape (candidates * C,) both.
        size: numbers that `error` takes for one candidate.
        least: what errors cannot fall below, for parameters like those of `error`, in less time: candidates that cannot
            win in any channel are left out.
    """
    search = _Search(low, high, spec, error, tried_together(size), least)
    search.scan(ends=(True, True))
    # Where one end is zero, or the other follows from it, there is a single factor to find.
    if not spec.symmetric and bool(((low < 0) & (high > 0)).any()):
        search.scan_thresholds()
        for _ in range(_ROUNDS):
            search.scan(ends=(True, False))
            search.scan(ends=(False, True))
    return search.range_of(search.low_factor, search.high_factor)


class _Search:
    """Best factors so far, shape (C,), with their error."""

    def __init__(
        self,
        low: FloatArray,
        high: FloatArray,
        spec: TensorSpec,
        error: ErrorOf,
        together: int,
        least: ErrorOf | None = None,
    ) -> None:
        self._low, self._high, self._spec, self._error, self._together = low, high, spec, error, together
        self._bound = least
        self._scheme = spec.but(axis=0, block_size=None)
        self._tried = set[tuple[bytes, bytes]]()
        self.low_factor: _Floats = np.ones(low.shape)
        self.high_factor: _Floats = np.ones(low.shape)
        self.least: _Floats = np.full(low.shape, np.inf)
        self.least = self._errors(self.low_factor[None], self.high_factor[None])[0]

    def scan(self, ends: tuple[bool, bool]) -> None:
        """Try all factors for the `ends` (low, high) named, then finer ones around the best."""
        self._try_ends(FACTORS[:, None], ends)
        centre = self.high_factor if ends[1] else self.low_factor
        gap = np.where(centre > 0.25, 0.02, centre * 0.25)
        self._try_ends(np.clip(centre + _FINE[:, None] * gap, FACTORS[-1], 1), ends)

    def scan_thresholds(self) -> None:
        """Try ranges with both ends at one distance from zero, or where the data end if that is nearer."""
        low, high = np.maximum(-self._low.astype(np.float64), 0), np.maximum(self._high.astype(np.float64), 0)
        threshold = np.maximum(low, high) * FACTORS[:, None]
        self._try(
            np.minimum(threshold / np.where(low > 0, low, 1), 1),
            np.minimum(threshold / np.where(high > 0, high, 1), 1),
        )

    def range_of(self, low_factor: _Floats, high_factor: _Floats) -> tuple[_Floats, _Floats]:
        """The range for shrink factors, clipped to the range seen: it is never wider."""
        low, high = self._low.astype(np.float64), self._high.astype(np.float64)
        if self._spec.symmetric:
            threshold = np.maximum(-low, high) * high_factor
            start, stop = -threshold, threshold
        else:
            start, stop = np.minimum(low, 0) * low_factor, np.maximum(high, 0) * high_factor
        return (
            np.clip(start, low, high).astype(np.float32),
            np.clip(stop, low, high).astype(np.float32),
        )

    def _try_ends(self, factors: _Floats, ends: tuple[bool, bool]) -> None:
        shape = (len(factors), *self._low.shape)
        own = (self.low_factor, self.high_factor)
        low, high = (np.broadcast_to(factors if moves else kept, shape) for moves, kept in zip(ends, own, strict=True))
        self._try(low, high)

    def _try(self, low_factors: _Floats, high_factors: _Floats) -> None:
        """Take what is better of candidates (K, C), one after another."""
        if self._low.size == 1:  # all of many channels hardly repeat
            key = low_factors.tobytes(), high_factors.tobytes()
            if key in self._tried:  # the least error has only fallen since, so none of them is better now
                return
            self._tried.add(key)
        errors = self._errors(low_factors, high_factors)
        # The least error only falls, so that what does not improve on it now does not later.
        for index in np.flatnonzero(self._improves(errors).any(axis=1)):
            better = self._improves(errors[index])
            self.low_factor = np.where(better, low_factors[index], self.low_factor)
            self.high_factor = np.where(better, high_factors[index], self.high_factor)
            self.least = np.where(better, errors[index], self.least)

    def _improves(self, errors: _Floats) -> npt.NDArray[np.bool_]:
        # A margin, so that rounding noise does not clip what lies on the grid already.
        return np.asarray(errors < self.least * (1 - 1e-6))

    def _errors(self, low_factors: _Floats, high_factors: _Floats) -> _Floats:
        """Errors of candidates, shape (K, C) like their factors; infinity for those that improve on no channel."""
        channels = self._low.size
        errors = np.full(low_factors.shape, np.inf)
        many = max(self._together, tried_together(channels))
        for first in range(0, len(low_factors), many):
            low, high = self.range_of(low_factors[first : first + many], high_factors[first : first + many])
            qparams = numerics.from_range(low.reshape(-1), high.reshape(-1), self._scheme)
            scales, zero_points = qparams.scale.reshape(low.shape), qparams.zero_point.reshape(low.shape)
            worth = np.arange(len(low))
            if self._bound is not None:
                worth = np.flatnonzero(self._improves(self._bound(qparams).reshape(low.shape)).any(axis=1))
            for start in range(0, len(worth), self._together):
                part = worth[start : start + self._together]
                own = QParams.of(scales[part].reshape(-1), zero_points[part].reshape(-1), self._scheme)
                errors[first + part] = self._error(own).reshape(-1, channels)
        return errors
