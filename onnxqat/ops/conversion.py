"""Changes of element type."""

from __future__ import annotations

from onnxqat.ops._base import OpDef

OPS: tuple[OpDef, ...] = (
    OpDef("Cast", 1, 28, ("parameter",)),
    OpDef("CastLike", 15, 25, ("parameter", "parameter")),
    OpDef("BitCast", 26, 26, ("parameter",)),
)
