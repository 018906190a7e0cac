"""Operators with subgraphs."""

from __future__ import annotations

from onnxqat.ops._base import OpDef

OPS: tuple[OpDef, ...] = (
    OpDef("If", 1, 25, ("parameter",)),
    OpDef("Loop", 1, 25, ("parameter",)),
    OpDef("Scan", 8, 25, ("parameter",)),
)
