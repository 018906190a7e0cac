"""Normalization layers."""

from __future__ import annotations

from onnxqat.ops._base import OpDef

OPS: tuple[OpDef, ...] = (
    OpDef("BatchNormalization", 1, 15, ("data", "parameter", "parameter", "parameter", "parameter")),
    OpDef("InstanceNormalization", 6, 22, ("data", "parameter", "parameter")),
    OpDef("LayerNormalization", 17, 17, ("data", "parameter", "parameter")),
    OpDef("GroupNormalization", 18, 21, ("data", "parameter", "parameter")),
    OpDef("SimplifiedLayerNormalization", 1, 1, ("data", "parameter")),
    OpDef("RMSNormalization", 23, 23, ("data", "parameter")),
    OpDef("LRN", 1, 13),
    OpDef("LpNormalization", 1, 22, output_range=(-1.0, 1.0)),
    OpDef("MeanVarianceNormalization", 9, 13),
)
