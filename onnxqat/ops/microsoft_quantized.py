"""com.microsoft operators from 8-bit codes to 8-bit codes, which are not trained."""

from __future__ import annotations

from onnxqat.ops._base import OpDef

DOMAIN = "com.microsoft"

OPS: tuple[OpDef, ...] = (
    OpDef("QLinearAdd", 1, 1, ("parameter",), domain=DOMAIN),
    OpDef("QLinearMul", 1, 1, ("parameter",), domain=DOMAIN),
    OpDef("QLinearSigmoid", 1, 1, ("parameter",), domain=DOMAIN),
    OpDef("QLinearLeakyRelu", 1, 1, ("parameter",), domain=DOMAIN),
    OpDef("QLinearSoftmax", 1, 1, ("parameter",), domain=DOMAIN),
    OpDef("QLinearConcat", 1, 1, ("parameter",), domain=DOMAIN),
    OpDef("QLinearWhere", 1, 1, ("parameter",), domain=DOMAIN),
    OpDef("QLinearAveragePool", 1, 1, ("parameter",), domain=DOMAIN),
    OpDef("QLinearGlobalAveragePool", 1, 1, ("parameter",), domain=DOMAIN),
    OpDef("NhwcMaxPool", 1, 1, ("parameter",), domain=DOMAIN),
)
