"""The moving averages of each batch's minimum and maximum (MQBench's ``EMAMinMaxObserver``, rate 0.9)."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from onnxqat.calibration.observers._moving_average import Ends, MovingAverageObserver


class Observer(MovingAverageObserver):
    """The average minimum to the average maximum over batches."""

    def _ends(self, rows: npt.NDArray[Any]) -> Ends:
        return rows.min(axis=1), rows.max(axis=1)
