"""Operators from codes to codes, and the float operator that each is between DequantizeLinear and QuantizeLinear."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias

import onnx_ir as ir

from onnxqat.graph import query

ONNX, MICROSOFT = "", "com.microsoft"
RankOf: TypeAlias = Callable[["ir.Value | None"], "int | None"]


@dataclasses.dataclass(frozen=True)
class Operand:
    """Input of codes: indices of codes, scale and zero point, and the axis of one scale per channel."""

    codes: int
    scale: int
    zero_point: int
    axis: int | None = None


@dataclasses.dataclass(frozen=True)
class Form:
    """A node in float.

    Attributes:
        op_type: ONNX operator.
        operands: inputs of codes, in the order of the float operator's inputs.
        attributes: of the float operator.
        scale: index of the result's scale; None for a result in float.
        zero_point: index of the result's zero point.
        bias: index of an int32 bias on the grid of the accumulator; None without.
        bias_factor: what the product of the two scales is multiplied with for the bias.
        plain: indices of inputs that are no codes, in front of the operands.
    """

    op_type: str
    operands: tuple[Operand, ...]
    attributes: dict[str, Any]
    scale: int | None
    zero_point: int
    bias: int | None = None
    bias_factor: float = 1.0
    plain: tuple[int, ...] = ()


def _kept(node: ir.Node, *without: str) -> dict[str, Any]:
    return {name: a.value for name, a in node.attributes.items() if name not in without}


def _axis_of(node: ir.Node, scale: int, axis: int) -> int | None:
    """`axis` where the scale is a vector; None for one number."""
    value = query.constant_array(node.inputs[scale])
    return axis if value is not None and value.ndim == 1 and value.size > 1 else None


def _conv(node: ir.Node, rank_of: RankOf) -> Form | str:
    if query.attribute(node, "channels_last", 0):
        return "its channels come last"
    operands = Operand(0, 1, 2), Operand(3, 4, 5, _axis_of(node, 4, 0))
    bias = 8 if query.input_at(node, 8) is not None else None
    return Form("Conv", operands, _kept(node, "channels_last"), 6, 7, bias)


def _matmul(node: ir.Node, rank_of: RankOf) -> Form | str:
    rank = rank_of(node.inputs[3])
    if _axis_of(node, 1, 0) is not None or (rank is None and _axis_of(node, 4, 0) is not None):
        return "it has one scale per row, or a matrix of unknown rank"
    axis = None if rank is None else _axis_of(node, 4, rank - 1)
    return Form("MatMul", (Operand(0, 1, 2), Operand(3, 4, 5, axis)), {}, 6, 7)


def _gemm(node: ir.Node, rank_of: RankOf) -> Form | str:
    axis = _axis_of(node, 4, 0 if query.attribute(node, "transB", 0) else 1)
    bias = 6 if query.input_at(node, 6) is not None else None
    quantized = query.input_at(node, 7) is not None
    alpha = float(query.attribute(node, "alpha", 1.0))
    operands = Operand(0, 1, 2), Operand(3, 4, 5, axis)
    return Form("Gemm", operands, _kept(node), 7 if quantized else None, 8, bias, alpha)


def _binary(op_type: str) -> Callable[[ir.Node, RankOf], Form | str]:
    return lambda node, rank_of: Form(op_type, (Operand(0, 1, 2), Operand(3, 4, 5)), {}, 6, 7)


def _unary(op_type: str, *without: str) -> Callable[[ir.Node, RankOf], Form | str]:
    def form(node: ir.Node, rank_of: RankOf) -> Form | str:
        if query.attribute(node, "channels_last", 0):
            return "its channels come last"
        return Form(op_type, (Operand(0, 1, 2),), _kept(node, "channels_last", *without), 3, 4)

    return form


def _softmax(node: ir.Node, rank_of: RankOf) -> Form | str:
    axis, rank = int(query.attribute(node, "axis", -1)), rank_of(node.inputs[0])
    if int(query.attribute(node, "opset", 13)) < 13:  # until then the axes behind `axis` were flattened
        if axis != -1 and (rank is None or axis % rank != rank - 1):
            return "it flattens its input, as Softmax did before opset 13"
        axis = -1
    return Form("Softmax", (Operand(0, 1, 2),), {"axis": axis}, 3, 4)


def _concat(node: ir.Node, rank_of: RankOf) -> Form | str:
    operands = tuple(Operand(i, i + 1, i + 2) for i in range(2, len(node.inputs), 3))
    return Form("Concat", operands, _kept(node), 0, 1)


def _where(node: ir.Node, rank_of: RankOf) -> Form | str:
    return Form("Where", (Operand(1, 2, 3), Operand(4, 5, 6)), {}, 7, 8, plain=(0,))


FORMS: dict[tuple[str, str], Callable[[ir.Node, RankOf], Form | str]] = {
    (ONNX, "QLinearConv"): _conv,
    (ONNX, "QLinearMatMul"): _matmul,
    (MICROSOFT, "QGemm"): _gemm,
    (MICROSOFT, "QLinearAdd"): _binary("Add"),
    (MICROSOFT, "QLinearAveragePool"): _unary("AveragePool"),
    (MICROSOFT, "QLinearConcat"): _concat,
    (MICROSOFT, "QLinearConv"): _conv,
    (MICROSOFT, "QLinearGlobalAveragePool"): _unary("GlobalAveragePool"),
    (MICROSOFT, "QLinearLeakyRelu"): _unary("LeakyRelu"),
    (MICROSOFT, "QLinearMul"): _binary("Mul"),
    (MICROSOFT, "QLinearReduceMean"): _unary("ReduceMean"),
    (MICROSOFT, "QLinearSigmoid"): _unary("Sigmoid"),
    (MICROSOFT, "QLinearSoftmax"): _softmax,
    (MICROSOFT, "QLinearWhere"): _where,
}
"""By domain and operator: the float form of a node, or the reason why it has none."""
