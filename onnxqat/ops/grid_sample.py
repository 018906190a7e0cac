"""Sampling at computed positions."""

from __future__ import annotations

from onnxqat.ops._base import OpDef

OPS: tuple[OpDef, ...] = (
    OpDef("GridSample", 16, 22, ("data", "parameter")),
    OpDef("AffineGrid", 20, 20, ("parameter",)),
)
