"""Cosine between the outputs and those of the float model."""

from __future__ import annotations

import math

from onnxqat.metrics._base import BaseMetric, Batch, floats
from onnxqat.metrics._closeness import Closeness
from onnxqat.metrics._limits import COSINE


class Metric(BaseMetric):
    """-1 to 1, over all values of an output; of several outputs the worst. NaN where the model gives NaN or infinity."""

    needs = "float"
    limits = COSINE

    def __init__(self) -> None:
        self._sums: dict[str, Closeness] = {}

    def update(self, batch: Batch) -> None:
        """Add one batch."""
        assert batch.reference is not None
        for name, (value, reference) in floats("cosine", batch.outputs, batch.reference).items():
            self._sums.setdefault(name, Closeness()).update(value, reference)

    def result(self) -> float:
        """The worst cosine."""
        return min((math.nan if s.non_finite else s.cosine for s in self._sums.values()), key=_order, default=math.nan)


def _order(value: float) -> float:
    """NaN before every number: `min` would depend on its place."""
    return -math.inf if math.isnan(value) else value
