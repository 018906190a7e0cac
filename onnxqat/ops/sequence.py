"""Operators on sequences and optional values; none of them computes."""

from __future__ import annotations

from onnxqat.ops._base import OpDef

OPS: tuple[OpDef, ...] = (
    OpDef("SequenceEmpty", 11, 11, ()),
    OpDef("SequenceConstruct", 11, 11, ("parameter",)),
    OpDef("SequenceInsert", 11, 11, ("parameter",)),
    OpDef("SequenceErase", 11, 11, ("parameter",)),
    OpDef("SequenceAt", 11, 11, ("parameter",)),
    OpDef("SequenceLength", 11, 11, ("parameter",)),
    OpDef("SplitToSequence", 11, 24, ("parameter",)),
    OpDef("ConcatFromSequence", 11, 11, ("parameter",)),
    OpDef("SequenceMap", 17, 17, ("parameter",)),
    OpDef("Optional", 15, 28, ("parameter",)),
    OpDef("OptionalHasElement", 15, 28, ("parameter",)),
    OpDef("OptionalGetElement", 15, 28, ("parameter",)),
)
