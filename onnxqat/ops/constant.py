"""Operators that make constants."""

from __future__ import annotations

from onnxqat.ops._base import OpDef

OPS: tuple[OpDef, ...] = (
    OpDef("Constant", 1, 25, ()),
    OpDef("ConstantOfShape", 9, 25, ("parameter",)),
    OpDef("Range", 11, 27, ("parameter",)),
    OpDef("EyeLike", 9, 22, ("parameter",)),
)
