"""Share of samples whose largest class score is the right one."""

from __future__ import annotations

from onnxqat.metrics._among import AmongMetric


class Metric(AmongMetric):
    """0 to 1, of one output (N, C). Without labels the right class is the float model's: agreement with it."""

    most = 1
