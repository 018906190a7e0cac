"""Layers that multiply stored codes: operators on codes, as the float layers whose products they add up."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from onnxqat.graph import query

MICROSOFT = "com.microsoft"


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Input indices of the factors of an integer operator, such as QLinearConv.

    Attributes:
        op_type: the float layer that computes the same sum of products.
        weight: index of the codes of the weight.
        codes: index of the codes of the activation; None if the operator quantizes it itself.
        zero_point: index of their zero point.
    """

    op_type: str
    weight: int
    codes: int | None
    zero_point: int = 2


_LINEAR = {op: Inputs(op.removeprefix("QLinear"), 3, 0) for op in ("QLinearConv", "QLinearMatMul")}
OPERATORS = {
    **{("", op): inputs for op, inputs in _LINEAR.items()},
    ("", "ConvInteger"): Inputs("Conv", 1, 0),
    ("", "MatMulInteger"): Inputs("MatMul", 1, 0),
    (MICROSOFT, "QLinearConv"): _LINEAR["QLinearConv"],
    (MICROSOFT, "QGemm"): Inputs("Gemm", 3, 0),
    (MICROSOFT, "MatMulIntegerToFloat"): Inputs("MatMul", 1, 0, 4),
    (MICROSOFT, "DynamicQuantizeMatMul"): Inputs("MatMul", 1, None),
}
"""By domain and operator."""


@dataclasses.dataclass(frozen=True, eq=False)
class IntegerLayer:
    """One operator on codes whose weight is constant.

    Attributes:
        plain: the float layer with its attributes, connected to nothing.
        weight: its int8 codes.
        codes: of the activation, channels in axis 1 for a convolution; None where the operator has no such tensor.
        zero_point: of these codes; None where it is omitted.
    """

    plain: ir.Node
    weight: np.ndarray
    codes: ir.Value | None = None
    zero_point: ir.Value | None = None


def of(node: ir.Node) -> IntegerLayer | None:
    """`node` as such a layer; None for other operators, and for weights that are no constant int8 codes."""
    found = OPERATORS.get((node.domain, node.op_type))
    weight = None if found is None else query.constant_array(query.input_at(node, found.weight))
    if found is None or weight is None or weight.dtype != np.int8:
        return None
    plain = ir.Node("", found.op_type, [], attributes=node.attributes.values(), name=node.name)
    if found.codes is None or query.attribute(node, "channels_last", 0):
        return IntegerLayer(plain, weight)
    return IntegerLayer(plain, weight, node.inputs[found.codes], query.input_at(node, found.zero_point))
