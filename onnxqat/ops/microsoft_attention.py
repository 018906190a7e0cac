"""com.microsoft's attention operators."""

from __future__ import annotations

from onnxqat.ops._base import OpDef

DOMAIN = "com.microsoft"

OPS: tuple[OpDef, ...] = (
    OpDef("Attention", 1, 1, ("data", "weight", "bias", "parameter", "data", "parameter"), domain=DOMAIN),
    OpDef("QAttention", 1, 1, ("parameter",), domain=DOMAIN),
    OpDef("MultiHeadAttention", 1, 1, ("data", "data", "data", "bias", "parameter"), domain=DOMAIN),
    OpDef("GroupQueryAttention", 1, 1, ("data", "data", "data", "data", "data", "parameter"), domain=DOMAIN),
    OpDef("RotaryEmbedding", 1, 1, ("data", "parameter"), domain=DOMAIN),
)
