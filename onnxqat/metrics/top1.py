"""Share of samples whose largest class score is the right one."""

from __future__ import annotations

from onnxqat.metrics._accuracy import AccuracyMeter
from onnxqat.metrics._base import BaseMetric, Batch, class_scores
from onnxqat.metrics._paired import Answers


class Metric(BaseMetric):
    """0 to 1, of one output (N, C). Without labels the right class is the float model's: agreement with it."""

    needs = "either"
    default_drop = 0.005

    def __init__(self) -> None:
        self._meter = AccuracyMeter()

    def update(self, batch: Batch) -> None:
        """Count one batch."""
        right = batch.labels
        if right is None:
            assert batch.reference is not None
            right = class_scores("top1", batch.reference).argmax(axis=1)
        self._meter.update(class_scores("top1", batch.outputs), right)

    def result(self) -> float:
        """The share."""
        return self._meter.result("", "").top1

    def answers(self) -> Answers:
        """Of every sample."""
        return self._meter.answers()
