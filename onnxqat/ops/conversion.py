"""Changes of element type."""

from __future__ import annotations

from onnxqat.ops._base import OpDef

OPS: tuple[OpDef, ...] = (
    OpDef("Cast", 6, 28, ("parameter",)),
    OpDef("CastLike", 15, 25, ("parameter", "parameter")),
)
