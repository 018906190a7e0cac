"""Quantization operators that are not part of a recognised quantizer."""

from __future__ import annotations

from onnxqat.ops._base import OpDef

OPS: tuple[OpDef, ...] = (
    OpDef("QuantizeLinear", 10, 28, ("data", "parameter", "parameter")),
    OpDef("DequantizeLinear", 10, 28, ("data", "parameter", "parameter")),
    OpDef("DynamicQuantizeLinear", 11, 11),
)
