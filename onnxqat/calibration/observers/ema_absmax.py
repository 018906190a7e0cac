"""The moving average of each batch's largest magnitude (PaddleSlim's ``moving_average_abs_max``, rate 0.9)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from onnxqat.calibration.observers._moving_average import Ends, MovingAverageObserver


class Observer(MovingAverageObserver):
    """``-a .. a`` with ``a`` the average of ``max|x|`` over batches, cut to the values seen."""

    def _ends(self, rows: npt.NDArray[Any]) -> Ends:
        largest = np.abs(rows).max(axis=1)
        return -largest, largest
