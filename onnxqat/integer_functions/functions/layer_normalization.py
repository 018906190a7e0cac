"""LayerNormalization of codes."""

from __future__ import annotations

from onnxqat.integer_functions.functions._normalization import Normalization


class Function(Normalization):
    """``(x - mean) / sqrt(variance + epsilon) * gamma + beta``."""

    operator = "LayerNormalization"
    weights = ("gamma", "beta")
    centered = True
