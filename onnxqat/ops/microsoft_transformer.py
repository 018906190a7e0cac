"""com.microsoft operators that onnxruntime's optimizers put in the place of several: activations, norms, products."""

from __future__ import annotations

from onnxqat.ops._base import OpDef

DOMAIN = "com.microsoft"

OPS: tuple[OpDef, ...] = (
    OpDef("FastGelu", 1, 1, ("data", "bias"), domain=DOMAIN),
    OpDef("QuickGelu", 1, 1, domain=DOMAIN),
    OpDef("BiasGelu", 1, 1, ("data", "bias"), domain=DOMAIN),
    OpDef("BiasSplitGelu", 1, 1, ("data", "bias"), domain=DOMAIN),
    OpDef("BiasAdd", 1, 1, ("data", "bias", "data"), domain=DOMAIN),
    OpDef("BiasSoftmax", 1, 1, ("data", "parameter"), domain=DOMAIN, output_range=(0.0, 1.0)),
    OpDef("SkipLayerNormalization", 1, 1, ("data", "data", "parameter"), domain=DOMAIN),
    OpDef("SkipSimplifiedLayerNormalization", 1, 1, ("data", "data", "parameter"), domain=DOMAIN),
    OpDef("EmbedLayerNormalization", 1, 1, ("parameter",), domain=DOMAIN),
    OpDef("QEmbedLayerNormalization", 1, 1, ("parameter",), domain=DOMAIN),
    OpDef("GroupNorm", 1, 1, ("data", "parameter"), domain=DOMAIN),
    OpDef("SkipGroupNorm", 1, 1, ("data", "parameter", "parameter", "data", "bias"), domain=DOMAIN),
    OpDef("FusedMatMul", 1, 1, ("data", "weight"), domain=DOMAIN),
    OpDef("TransposeMatMul", 1, 1, ("data", "weight"), domain=DOMAIN),
    OpDef("FusedGemm", 1, 1, ("data", "weight", "bias"), domain=DOMAIN),
    OpDef("FusedConv", 1, 1, ("data", "weight", "bias", "data"), domain=DOMAIN),
)
