"""Attention and what a transformer block of ai.onnx has beside it."""

from __future__ import annotations

from onnxqat.ops._base import OpDef

OPS: tuple[OpDef, ...] = (
    OpDef("Attention", 23, 25, ("data", "data", "data", "parameter", "data", "data", "parameter")),
    OpDef("RotaryEmbedding", 23, 23, ("data", "parameter")),
    OpDef("LinearAttention", 27, 27, ("data", "data", "data", "data", "parameter", "parameter")),
    OpDef("CausalConvWithState", 27, 27, ("data", "weight", "bias", "data")),
    OpDef("TensorScatter", 24, 24, ("data", "data", "parameter")),
    OpDef("FlexAttention", 1, 1, domain="ai.onnx.preview"),
)
