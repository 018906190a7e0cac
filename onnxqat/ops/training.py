"""Optimizer steps."""

from __future__ import annotations

from onnxqat.ops._base import OpDef

DOMAIN = "ai.onnx.preview.training"
OPS: tuple[OpDef, ...] = (
    OpDef("Adagrad", 1, 1, ("parameter",), DOMAIN),
    OpDef("Adam", 1, 1, ("parameter",), DOMAIN),
    OpDef("Momentum", 1, 1, ("parameter",), DOMAIN),
)
