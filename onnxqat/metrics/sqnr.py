"""Signal to quantization noise of the outputs, in dB."""

from __future__ import annotations

import math

from onnxqat.metrics._base import BaseMetric, Batch, floats
from onnxqat.metrics._closeness import Difference
from onnxqat.metrics._limits import NOISE


class Metric(BaseMetric):
    """10 log10(sum(float²) / sum((float - quantized)²)) over all values of an output; of several outputs the worst.

    Infinite where they are equal, minus infinity where the model gives NaN or infinity.
    """

    needs = "float"
    default_drop = 3.0
    limits = NOISE

    def __init__(self) -> None:
        self._sums: dict[str, Difference] = {}

    def update(self, batch: Batch) -> None:
        """Add one batch."""
        assert batch.reference is not None
        for name, (value, reference) in floats("sqnr", batch.outputs, batch.reference).items():
            self._sums.setdefault(name, Difference()).update(value, reference)

    def result(self) -> float:
        """The worst ratio."""
        found = [-math.inf if s.non_finite else s.sqnr_db for s in self._sums.values() if s.elements]
        return min(found, default=math.nan)

    @staticmethod
    def drop(before: float, after: float) -> float:
        """Noise in percent of the signal: the float model is infinitely many dB from itself."""
        return 100.0 * 10.0 ** (-after / 20.0) if after > -math.inf else math.inf
