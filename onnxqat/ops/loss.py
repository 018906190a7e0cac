"""Loss functions."""

from __future__ import annotations

from onnxqat.ops._base import OpDef

OPS: tuple[OpDef, ...] = (
    OpDef("NegativeLogLikelihoodLoss", 12, 22, ("parameter",)),
    OpDef("SoftmaxCrossEntropyLoss", 12, 13, ("parameter",)),
)
