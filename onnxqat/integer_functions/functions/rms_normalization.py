"""RMSNormalization of codes."""

from __future__ import annotations

from onnxqat.integer_functions.functions._normalization import Normalization


class Function(Normalization):
    """``x / sqrt(mean(x**2) + epsilon) * gamma``."""

    operator = "RMSNormalization"
    weights = ("gamma",)
    centered = False
