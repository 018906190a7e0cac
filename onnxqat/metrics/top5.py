"""Share of samples whose right class is among the five with the largest scores."""

from __future__ import annotations

from onnxqat.metrics._accuracy import TOP
from onnxqat.metrics._among import AmongMetric


class Metric(AmongMetric):
    """0 to 1, of one output (N, C), C > 5. Without labels the right class is the float model's first."""

    most = TOP
