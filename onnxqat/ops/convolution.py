"""Convolutions."""

from __future__ import annotations

from onnxqat.ops._base import OpDef

OPS: tuple[OpDef, ...] = (
    OpDef("Conv", 1, 22, ("data", "weight", "bias"), weight_axis=0),
    OpDef("ConvTranspose", 1, 22, ("data", "weight", "bias"), weight_axis=1),
    OpDef("DeformConv", 19, 22, ("data", "weight", "parameter"), weight_axis=0),
)
