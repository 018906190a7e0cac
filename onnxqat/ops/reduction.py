"""Reductions over axes."""

from __future__ import annotations

from onnxqat.ops._base import OpDef

OPS: tuple[OpDef, ...] = (
    OpDef("ReduceMax", 1, 20, ("data", "parameter"), passthrough=True),
    OpDef("ReduceMin", 1, 20, ("data", "parameter"), passthrough=True),
    OpDef("ReduceMean", 1, 18, ("data", "parameter")),
    OpDef("ReduceSum", 1, 13, ("data", "parameter")),
    OpDef("ReduceProd", 1, 18, ("data", "parameter")),
    OpDef("ReduceL1", 1, 18, ("data", "parameter")),
    OpDef("ReduceL2", 1, 18, ("data", "parameter")),
    OpDef("ReduceLogSum", 1, 28, ("data", "parameter")),
    OpDef("ReduceLogSumExp", 1, 28, ("data", "parameter")),
    OpDef("ReduceSumSquare", 1, 18, ("data", "parameter")),
    OpDef("ArgMax", 1, 13),
    OpDef("ArgMin", 1, 13),
)
