"""Convolutions and matrix products of integers, which are not trained."""

from __future__ import annotations

from onnxqat.ops._base import OpDef

OPS: tuple[OpDef, ...] = (
    OpDef("ConvInteger", 10, 10, ("parameter",)),
    OpDef("MatMulInteger", 10, 10, ("parameter",)),
    OpDef("QLinearConv", 10, 10, ("parameter",)),
    OpDef("QLinearMatMul", 10, 21, ("parameter",)),
    OpDef("QLinearConv", 1, 1, ("parameter",), domain="com.microsoft"),
    OpDef("MatMulIntegerToFloat", 1, 1, ("parameter",), domain="com.microsoft"),
    OpDef("DynamicQuantizeMatMul", 1, 1, ("parameter",), domain="com.microsoft"),
    OpDef("QGemm", 1, 1, ("parameter",), domain="com.microsoft"),
)
