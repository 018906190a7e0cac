"""Names of the kinds of groups; a table names them, so that nothing is imported here."""

from __future__ import annotations

KINDS = (
    "Gelu",
    "Silu",
    "HardSwish",
    "Mish",
    "LayerNormalization",
    "RMSNormalization",
    "GroupNormalization",
    "Attention",
    "RotaryEmbedding",
)
"""Kinds of groups, by the names of ONNX's operators where there are such."""
