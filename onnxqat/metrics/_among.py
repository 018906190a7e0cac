"""Share of samples whose right class is among the largest scores: what top1 and top5 have in common."""

from __future__ import annotations

import math
from typing import ClassVar

from onnxqat.errors import UsageError
from onnxqat.metrics._accuracy import AccuracyMeter
from onnxqat.metrics._base import BaseMetric, Batch, class_scores
from onnxqat.metrics._paired import Answers


class AmongMetric(BaseMetric):
    """0 to 1, of one output (N, C). Without labels the right class is the float model's first.

    Attributes:
        most: number of the largest scores that count, 1 or 5.
    """

    needs = "either"
    default_drop = 0.005
    most: ClassVar[int]

    def __init__(self) -> None:
        self._meter = AccuracyMeter()

    def update(self, batch: Batch) -> None:
        """Count one batch."""
        name = f"top{self.most}"
        scores, right = class_scores(name, batch.outputs), batch.labels
        if 1 < self.most >= scores.shape[1]:
            text = f"{name} is 1 for every model of {scores.shape[1]} classes"
            raise UsageError("score-output", text, hint="use top1")
        if right is None:
            assert batch.reference is not None
            right = class_scores(name, batch.reference).argmax(axis=1)
        self._meter.update(scores, right)

    def result(self) -> float:
        """The share; NaN without a sample."""
        right = self.answers().right
        return float(right.mean()) if len(right) else math.nan

    def answers(self) -> Answers:
        """Return for every sample whether its class is among the largest scores."""
        return self._meter.answers(self.most)
