"""The scale that keeps the largest value of a row the largest (PPQ's ``isotone``): for the scores of a classifier.

Let L1 and L2 be the largest and the second largest value along the last axis. Their order survives quantization where
``scale < 2 * (L1 - L2)``, so that the two round apart, and ``L2 < (Qp - 1/2) * scale``, so that the second does not
saturate with the first. Each row thus votes for an interval of scales.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from onnxqat.calibration.observers._base import BaseObserver
from onnxqat.calibration.observers._scaled import Floats, scale_of, with_scale
from onnxqat.types import IntArray, TensorSpec

BINS_AN_OCTAVE = 64
OCTAVES = 128
"""Scales from ``2 ** -64`` to ``2 ** 64`` have a bin; the votes take 64 KB."""


class Observer(BaseObserver):
    """The largest scale that most rows voted for, at most that of minimum to maximum.

    ``Qp`` counts the codes above zero; on an asymmetric grid, all of them, as for scores that are never negative. Rows
    of one value and per-channel scales have no order to keep: minimum to maximum.
    """

    def __init__(self, spec: TensorSpec) -> None:
        super().__init__(spec)
        self._changes: IntArray = np.zeros(OCTAVES * BINS_AN_OCTAVE + 2, np.int64)

    def update(self, x: npt.NDArray[Any]) -> None:
        """Update as in the base class; rows lie along the last axis."""
        super().update(x)
        x = np.asarray(x)
        if x.size and x.ndim and x.shape[-1] > 1 and self.spec.axis is None:
            self._vote(x.reshape(-1, x.shape[-1]))

    def _vote(self, rows: npt.NDArray[Any]) -> None:
        second, first = np.partition(rows, [-2, -1], axis=1)[:, -2:].astype(np.float64).T
        smallest = second / (self.spec.codes_above - 0.5)
        largest = 2 * (first - second)
        last = OCTAVES * BINS_AN_OCTAVE
        begin = np.clip(np.floor(_bin_of(smallest)) + 1, 0, last).astype(np.int64)
        end = np.clip(np.ceil(_bin_of(largest)) - 1, -1, last).astype(np.int64)
        counted = begin <= end
        np.add.at(self._changes, begin[counted], 1)
        np.add.at(self._changes, end[counted] + 1, -1)

    def _accumulate(self, rows: npt.NDArray[Any]) -> None:
        """Rows of the base class are channels; :meth:`update` votes."""

    def _absorb(self, other: BaseObserver) -> None:
        assert isinstance(other, Observer)
        self._changes = self._changes + other._changes  # noqa: SLF001 - of the same class

    def _clipped(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        widest = scale_of(self.low, self.high, self.spec)
        allowed = int(np.clip(np.floor(_bin_of(widest))[0], -1, OCTAVES * BINS_AN_OCTAVE)) + 1
        votes = np.cumsum(self._changes)[:allowed]
        if self.spec.axis is not None or not votes.any():
            return self.low, self.high
        best = len(votes) - 1 - int(np.argmax(votes[::-1]))
        scale: Floats = np.full(1, 2.0 ** (best / BINS_AN_OCTAVE - OCTAVES / 2))
        return with_scale(self.low, self.high, self.spec, scale)


def _bin_of(scale: Floats) -> Floats:
    """Position of each scale among the bins, a bin's own scale at whole numbers; -1 for scales of 0 or below."""
    position = (np.log2(np.where(scale > 0, scale, 1.0)) + OCTAVES / 2) * BINS_AN_OCTAVE
    return np.where(scale > 0, position, -1.0)
