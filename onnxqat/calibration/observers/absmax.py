"""The largest magnitude, on both sides of zero (PaddleSlim's ``abs_max`` and ``channel_wise_abs_max``)."""

from __future__ import annotations

import numpy as np

from onnxqat.calibration.observers import minmax
from onnxqat.types import FloatArray


class Observer(minmax.Observer):
    """``-max|x| .. max|x|`` as far as there were values; per channel with a channel axis.

    On a symmetric grid that is ``minmax``.
    """

    def _clipped(self) -> tuple[FloatArray, FloatArray]:
        largest = np.maximum(np.abs(self.low), np.abs(self.high))
        return np.clip(-largest, self.low, self.high), np.clip(largest, self.low, self.high)
