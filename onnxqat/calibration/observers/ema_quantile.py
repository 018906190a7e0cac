"""The moving average of a quantile of each batch's magnitudes (MQBench's ``EMAQuantileObserver``)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from onnxqat.calibration.observers._moving_average import RATE, Ends, MovingAverageObserver
from onnxqat.types import TensorSpec


class Observer(MovingAverageObserver):
    """Moving average of each batch's range, clipped to ``-q .. q`` with ``q`` the `quantile` of the magnitudes.

    MQBench reads ``q`` from a histogram of 2048 bins; here it is exact.

    Args:
        spec: how the tensor is to be quantized.
        rate: see the base class.
        quantile: share of the magnitudes, over 0.5 and at most 1.
    """

    def __init__(self, spec: TensorSpec, rate: float = RATE, quantile: float = 0.99999) -> None:
        if not 0.5 < quantile <= 1:
            raise ValueError(f"a quantile of {quantile}; it must be over 0.5 and at most 1")
        super().__init__(spec, rate)
        self.quantile = quantile

    def _ends(self, rows: npt.NDArray[Any]) -> Ends:
        cut = np.quantile(np.abs(rows.astype(np.float32)), self.quantile, axis=1)
        return np.maximum(rows.min(axis=1), -cut), np.minimum(rows.max(axis=1), cut)
