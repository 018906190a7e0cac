"""Operators that cut or put together images."""

from __future__ import annotations

from onnxqat.ops._base import OpDef

OPS: tuple[OpDef, ...] = (
    OpDef("Col2Im", 18, 18, ("data", "parameter", "parameter")),
    OpDef("CenterCropPad", 18, 18, ("data", "parameter"), passthrough=True),
)
