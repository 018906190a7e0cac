"""Random numbers."""

from __future__ import annotations

from onnxqat.ops._base import OpDef

OPS: tuple[OpDef, ...] = (
    OpDef("RandomNormal", 1, 22, ()),
    OpDef("RandomNormalLike", 1, 22, ("parameter",)),
    OpDef("RandomUniform", 1, 22, ()),
    OpDef("RandomUniformLike", 1, 22, ("parameter",)),
    OpDef("Bernoulli", 15, 22, ("parameter",)),
    OpDef("Multinomial", 7, 22, ("parameter",)),
)
