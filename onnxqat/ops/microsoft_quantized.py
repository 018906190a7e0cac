"""com.microsoft operators from codes to codes, which are not trained, and its forms of Q and DQ outside of quantizers."""

from __future__ import annotations

from onnxqat.ops._base import OpDef

DOMAIN = "com.microsoft"

OPS: tuple[OpDef, ...] = (
    OpDef("QuantizeLinear", 1, 1, ("data", "parameter", "parameter"), domain=DOMAIN),
    OpDef("DequantizeLinear", 1, 1, ("data", "parameter", "parameter"), domain=DOMAIN),
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
