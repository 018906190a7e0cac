"""The largest magnitude of the last batches (PaddleSlim's ``range_abs_max``, window 10000)."""

from __future__ import annotations

from collections import deque
from itertools import zip_longest
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxqat.calibration.observers._base import BaseObserver
from onnxqat.types import FloatArray, TensorSpec

WINDOW = 10000


class Observer(BaseObserver):
    """``-max|x| .. max|x|`` over a window of batches, cut to the values seen; what was before it is forgotten.

    Merging takes the larger of the magnitudes of batches that are equally long ago.

    Args:
        spec: how the tensor is to be quantized.
        window: number of batches, at least 1.
    """

    def __init__(self, spec: TensorSpec, window: int = WINDOW) -> None:
        if window < 1:
            raise ValueError(f"a window of {window} batches; it must have one at least")
        super().__init__(spec)
        self._largest: deque[FloatArray] = deque(maxlen=window)

    def _accumulate(self, rows: npt.NDArray[Any]) -> None:
        self._largest.append(np.asarray(np.abs(rows).max(axis=1), np.float32))

    def _absorb(self, other: BaseObserver) -> None:
        assert isinstance(other, Observer)
        nothing = np.zeros(self.low.shape, np.float32)
        pairs = zip_longest(reversed(self._largest), reversed(other._largest), fillvalue=nothing)  # noqa: SLF001
        together = [np.maximum(own, theirs) for own, theirs in pairs]
        self._largest.clear()
        self._largest.extend(reversed(together))

    def _clipped(self) -> tuple[FloatArray, FloatArray]:
        largest = np.max(list(self._largest), axis=0)
        return np.clip(-largest, self.low, self.high), np.clip(largest, self.low, self.high)
