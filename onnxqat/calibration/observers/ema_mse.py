"""The moving average of the range with the least squared error on each batch (MQBench's ``EMAMSEObserver``)."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy.typing as npt

from onnxqat.calibration.observers import mse
from onnxqat.calibration.observers._moving_average import Ends, MovingAverageObserver


class Observer(MovingAverageObserver):
    """Moving average of the range that ``mse`` finds for each batch alone."""

    def _ends(self, rows: npt.NDArray[Any]) -> Ends:
        of_batch = mse.Observer(dataclasses.replace(self.spec, granularity="channel", axis=0, block_size=None))
        of_batch.update(rows)
        return of_batch.range()
