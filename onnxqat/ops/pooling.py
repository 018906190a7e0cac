"""Pooling."""

from __future__ import annotations

from onnxqat.ops._base import OpDef

OPS: tuple[OpDef, ...] = (
    OpDef("MaxPool", 1, 22, passthrough=True),
    OpDef("AveragePool", 1, 22),
    OpDef("GlobalAveragePool", 1, 22),
    OpDef("GlobalMaxPool", 1, 22, passthrough=True),
    OpDef("LpPool", 1, 22),
    OpDef("GlobalLpPool", 1, 22),
    OpDef("MaxUnpool", 9, 22, ("data", "parameter", "parameter"), passthrough=True),
)
