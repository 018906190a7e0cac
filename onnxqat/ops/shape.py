"""Operators that rearrange elements, and the ones that read a shape."""

from __future__ import annotations

from onnxqat.ops._base import OpDef

OPS: tuple[OpDef, ...] = (
    OpDef("Reshape", 5, 25, ("data", "parameter"), passthrough=True),
    OpDef("Transpose", 1, 25, passthrough=True),
    OpDef("Flatten", 1, 25, passthrough=True),
    OpDef("Squeeze", 1, 25, ("data", "parameter"), passthrough=True),
    OpDef("Unsqueeze", 1, 25, ("data", "parameter"), passthrough=True),
    OpDef("Expand", 8, 13, ("data", "parameter"), passthrough=True),
    OpDef("Tile", 6, 13, ("data", "parameter"), passthrough=True),
    OpDef("DepthToSpace", 1, 28, passthrough=True),
    OpDef("SpaceToDepth", 1, 28, passthrough=True),
    OpDef("Identity", 1, 25, passthrough=True),
    OpDef("Pad", 2, 25, ("data", "parameter", "parameter", "parameter")),
    OpDef("Shape", 1, 25, ("parameter",)),
    OpDef("Size", 1, 25, ("parameter",)),
)
