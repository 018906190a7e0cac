"""Matrix products."""

from __future__ import annotations

from onnxqat.ops._base import OpDef

OPS: tuple[OpDef, ...] = (
    OpDef("Gemm", 1, 13, ("data", "weight", "bias"), weight_axis="gemm"),
    OpDef("MatMul", 1, 13, ("data", "weight"), weight_axis=-1),
    OpDef("Einsum", 12, 28),
    OpDef("Det", 11, 22, ("parameter",)),
)
