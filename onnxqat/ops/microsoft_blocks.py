"""com.microsoft operators on weights that are stored as integers with one scale per block."""

from __future__ import annotations

from onnxqat.ops._base import OpDef

DOMAIN = "com.microsoft"

OPS: tuple[OpDef, ...] = (
    OpDef("MatMulNBits", 1, 1, ("data", "parameter", "parameter", "parameter", "parameter", "bias"), domain=DOMAIN),
    OpDef("GatherBlockQuantized", 1, 1, ("parameter",), domain=DOMAIN),
)
