"""Operators that select, join or scatter elements."""

from __future__ import annotations

from onnxqat.ops._base import OpDef

OPS: tuple[OpDef, ...] = (
    OpDef("Gather", 1, 13, ("weight", "parameter"), passthrough=True),
    OpDef("GatherElements", 11, 13, ("data", "parameter"), passthrough=True),
    OpDef("GatherND", 11, 13, ("data", "parameter"), passthrough=True),
    OpDef("Slice", 1, 13, ("data", "parameter"), passthrough=True),
    OpDef("Split", 2, 18, ("data", "parameter"), passthrough=True),
    OpDef("Concat", 1, 13),
    OpDef("Where", 9, 16, ("parameter", "data", "data")),
    OpDef("Scatter", 9, 11, ("data", "parameter", "data")),
    OpDef("ScatterElements", 11, 18, ("data", "parameter", "data")),
    OpDef("ScatterND", 11, 18, ("data", "parameter", "data")),
    OpDef("TopK", 1, 24, ("data", "parameter"), passthrough=True),
    OpDef("Trilu", 14, 14, ("data", "parameter"), passthrough=True),
    OpDef("Compress", 9, 28, ("data", "parameter"), passthrough=True),
    OpDef("NonZero", 9, 13, ("parameter",)),
    OpDef("OneHot", 9, 28, ("parameter", "parameter", "parameter")),
    OpDef("ReverseSequence", 10, 28, ("data", "parameter"), passthrough=True),
)
