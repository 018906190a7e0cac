"""Some standard deviations around the mean (MQBench's ``ClipStdObserver``, 2.6 of them)."""

from __future__ import annotations

import numpy as np

from onnxqat.calibration.observers._moments import Floats, MomentsObserver
from onnxqat.types import TensorSpec


class Observer(MomentsObserver):
    """``mean - k * std .. mean + k * std``, cut to the values seen.

    MQBench takes the wider of that and minimum to maximum, which clips nothing; here it clips, as the name says.

    Args:
        spec: how the tensor is to be quantized.
        deviations: k, over 0.
    """

    def __init__(self, spec: TensorSpec, deviations: float = 2.6) -> None:
        if not deviations > 0:
            raise ValueError(f"{deviations} standard deviations; they must be over 0")
        super().__init__(spec)
        self.deviations = deviations

    def _clipped(self) -> tuple[Floats, Floats]:
        reach = self.deviations * self.deviation
        return np.clip(self.mean - reach, self.low, self.high), np.clip(self.mean + reach, self.low, self.high)
