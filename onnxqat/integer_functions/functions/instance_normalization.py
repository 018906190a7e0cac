"""InstanceNormalization of codes: each channel of each sample is a row."""

from __future__ import annotations

from onnxqat.integer_functions.functions._by_channel import ByChannel


class Function(ByChannel):
    """``(x - mean) / sqrt(variance + epsilon) * gamma + beta`` over the places of a channel."""

    operator = "InstanceNormalization"
    attributes = ("epsilon",)
