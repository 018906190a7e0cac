"""Spatial resampling."""

from __future__ import annotations

from onnxqat.ops._base import OpDef

OPS: tuple[OpDef, ...] = (
    OpDef("Resize", 10, 19, ("data", "parameter", "parameter", "parameter")),
    OpDef("Upsample", 7, 10, ("data", "parameter")),
)
