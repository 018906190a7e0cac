"""Share of samples whose right class is among the five with the largest scores."""

from __future__ import annotations

import math

from onnxqat.errors import UsageError
from onnxqat.metrics._accuracy import TOP, AccuracyMeter
from onnxqat.metrics._base import BaseMetric, Batch, class_scores
from onnxqat.metrics._paired import Answers


class Metric(BaseMetric):
    """0 to 1, of one output (N, C), C > 5. Without labels the right class is the float model's first."""

    needs = "either"
    default_drop = 0.005

    def __init__(self) -> None:
        self._meter = AccuracyMeter()

    def update(self, batch: Batch) -> None:
        """Count one batch."""
        scores, right = class_scores("top5", batch.outputs), batch.labels
        if scores.shape[1] <= TOP:
            text = f"top5 is 1 for every model of {scores.shape[1]} classes"
            raise UsageError("score-output", text, hint="use top1")
        if right is None:
            assert batch.reference is not None
            right = class_scores("top5", batch.reference).argmax(axis=1)
        self._meter.update(scores, right)

    def result(self) -> float:
        """The share."""
        share = self._meter.result("", "").top5
        return math.nan if share is None else share

    def answers(self) -> Answers:
        """Of every sample."""
        return self._meter.answers(TOP)
