"""Comparisons, booleans and bitwise operators."""

from __future__ import annotations

from onnxqat.ops._base import OpDef

OPS: tuple[OpDef, ...] = (
    OpDef("Equal", 1, 19, ("parameter",)),
    OpDef("Greater", 1, 13, ("parameter",)),
    OpDef("Less", 1, 13, ("parameter",)),
    OpDef("GreaterOrEqual", 12, 16, ("parameter",)),
    OpDef("LessOrEqual", 12, 16, ("parameter",)),
    OpDef("And", 1, 7, ("parameter",)),
    OpDef("Or", 1, 7, ("parameter",)),
    OpDef("Xor", 1, 7, ("parameter",)),
    OpDef("Not", 1, 1, ("parameter",)),
    OpDef("IsNaN", 9, 20, ("parameter",)),
    OpDef("IsInf", 10, 20, ("parameter",)),
    OpDef("BitShift", 11, 28, ("parameter",)),
    OpDef("BitwiseAnd", 18, 18, ("parameter",)),
    OpDef("BitwiseOr", 18, 18, ("parameter",)),
    OpDef("BitwiseXor", 18, 18, ("parameter",)),
    OpDef("BitwiseNot", 18, 18, ("parameter",)),
)
