"""Elementwise arithmetic with broadcasting, and its variadic and cumulative relatives."""

from __future__ import annotations

from onnxqat.ops._base import OpDef

OPS: tuple[OpDef, ...] = (
    OpDef("Add", 1, 14),
    OpDef("Sub", 1, 14),
    OpDef("Mul", 1, 14),
    OpDef("Div", 1, 14),
    OpDef("Mod", 10, 28),
    OpDef("Pow", 1, 15, ("data", "parameter")),
    OpDef("Max", 1, 13),
    OpDef("Min", 1, 13),
    OpDef("Sum", 1, 13),
    OpDef("Mean", 1, 13),
    OpDef("Abs", 1, 13),
    OpDef("Ceil", 1, 13),
    OpDef("Exp", 1, 13),
    OpDef("Floor", 1, 13),
    OpDef("Log", 1, 13),
    OpDef("Neg", 1, 13),
    OpDef("Reciprocal", 1, 13),
    OpDef("Sqrt", 1, 13),
    OpDef("Sign", 9, 13, output_range=(-1.0, 1.0)),
    OpDef("Erf", 9, 13, output_range=(-1.0, 1.0)),
    OpDef("Round", 11, 22),
    OpDef("Sin", 7, 22, output_range=(-1.0, 1.0)),
    OpDef("Cos", 7, 22, output_range=(-1.0, 1.0)),
    OpDef("Tan", 7, 22),
    OpDef("Asin", 7, 22),
    OpDef("Acos", 7, 22),
    OpDef("Atan", 7, 22),
    OpDef("Sinh", 9, 22),
    OpDef("Cosh", 9, 22),
    OpDef("Asinh", 9, 22),
    OpDef("Acosh", 9, 22),
    OpDef("Atanh", 9, 22),
    OpDef("CumSum", 11, 14, ("data", "parameter")),
    OpDef("CumProd", 26, 26, ("data", "parameter")),
)
