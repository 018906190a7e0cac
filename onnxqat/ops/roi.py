"""Pooling over regions, and choosing regions."""

from __future__ import annotations

from onnxqat.ops._base import OpDef

OPS: tuple[OpDef, ...] = (
    OpDef("RoiAlign", 10, 22, ("data", "parameter", "parameter")),
    OpDef("MaxRoiPool", 1, 22, ("data", "parameter"), passthrough=True),
    OpDef("NonMaxSuppression", 10, 11, ("parameter",)),
)
