"""Weighted sums between pairs: products with constants and the Adds that join them, as one group."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from onnxqat.graph import qdq, query
from onnxqat.integer_functions import calls
from onnxqat.passes._paired_constants import Constant, numbers

MOST = 64
"""Operands of one sum: multipliers of 8-bit codes keep 16 bits and more."""


@dataclasses.dataclass
class WeightedSum:
    """The operators of ``w_1 * x_1 + ... + w_n * x_n + bias`` and the pairs between them.

    Attributes:
        operands: dequantized tensors, in the order of the sum.
        weights: factor of each operand.
        named: constant of the file that each weight is, where it is one alone.
        bias: the constants that are added.
        bias_named: constant of the file that the bias is, where it is one alone.
        nodes: operators and inner pairs, from the last to the first.
        constants: how many constants are added.
    """

    operands: list[ir.Value] = dataclasses.field(default_factory=list)
    weights: list[Constant] = dataclasses.field(default_factory=list)
    named: list[ir.Value | None] = dataclasses.field(default_factory=list)
    bias: Constant = dataclasses.field(default_factory=lambda: np.zeros((), np.float64))
    bias_named: ir.Value | None = None
    nodes: list[ir.Node] = dataclasses.field(default_factory=list)
    constants: int = 0

    def copy(self) -> WeightedSum:
        """Return a sum to which terms can be added."""
        return dataclasses.replace(
            self, operands=[*self.operands], weights=[*self.weights], named=[*self.named], nodes=[*self.nodes]
        )

    def take(self, other: WeightedSum) -> None:
        """Become `other`."""
        for field in dataclasses.fields(self):
            setattr(self, field.name, getattr(other, field.name))


_OPERATORS = ("Add", "Div", "Mul", "Neg", "Sub", "Sum")
_ALONE = ("Div", "Neg", "Sub")
"""Those that are worth a call by themselves: targets have kernels for a sum and a product of two."""


def ending_in(node: ir.Node) -> WeightedSum | str:
    """Return the weighted sum whose last operator is `node`, or the reason why there is none."""
    found = WeightedSum()
    reason = _collect(node, np.ones((), np.float64), None, found)
    if reason:
        return reason
    if not found.operands:
        return "all that it reads is constant"
    if len(found.nodes) == 1 and node.op_type not in _ALONE and len(found.operands) < 3 and _has_kernel(node):
        return "targets have a kernel for it"
    return found if len(found.operands) <= MOST else f"more than {MOST} tensors are added"


def _has_kernel(node: ir.Node) -> bool:
    """Check whether all that a sum or a product of two reads are codes, for which targets have a kernel."""
    return all(
        (maker := value.producer()) is not None and qdq.is_dequantize(maker)
        for value in node.inputs
        if value is not None
    )


def _collect(node: ir.Node, factor: Constant, named: ir.Value | None, found: WeightedSum) -> str:
    """Add the terms of `node`, each times `factor`; returns a reason why that can't be, or nothing."""
    found.nodes.append(node)
    if node.op_type == "Mul":
        values = [(v, numbers(v)) for v in node.inputs]
        constants = [(v, c) for v, c in values if c is not None]
        others = [v for v, c in values if c is None]
        if len(constants) != 1 or len(others) != 1:
            return "a product of two tensors is none of a weighted sum"
        value, constant = constants[0]
        if not _keeps_shape(constant, others[0]):
            return "a factor makes a tensor larger"
        alone = value if factor.size == 1 and factor == 1 and named is None else None
        return _term(others[0], factor * constant, alone, found)
    if node.op_type == "Div":
        divisor = numbers(node.inputs[1])
        if divisor is None or not divisor.all() or not _keeps_shape(divisor, node.inputs[0]):
            return "a quotient by a tensor, or by zero, is none of a weighted sum"
        return _term(node.inputs[0], factor / divisor, None, found)
    signs = {"Sub": [1.0, -1.0], "Neg": [-1.0]}.get(node.op_type, [1.0] * len(node.inputs))
    for value, sign in zip(node.inputs, signs, strict=True):
        reason = _term(value, factor * sign, None, found)
        if reason:
            return reason
    return ""


def _term(value: ir.Value | None, factor: Constant, named: ir.Value | None, found: WeightedSum) -> str:
    """Add one term, or the terms of the sum that it is, to `found`; return the reason where it cannot be."""
    constant = numbers(value)
    if value is None:
        return "an input is left out"
    if constant is not None:
        found.bias = found.bias + factor * constant
        found.constants += 1
        found.bias_named = value if found.constants == 1 and np.all(factor == 1) else None
        return ""
    inner, reason = _inner(value), "no pair is in front of it"
    if inner is not None:
        pair, node = inner
        longer = found.copy()
        longer.nodes.extend(pair)
        reason = _collect(node, factor, named, longer)
        if not reason:
            found.take(longer)
            return ""
    maker = value.producer()
    if not qdq.is_dequantize(maker):  # else the sum begins behind the pair
        return reason
    found.operands.append(value)
    found.weights.append(factor)
    found.named.append(named)
    return ""


def _inner(value: ir.Value) -> tuple[list[ir.Node], ir.Node] | None:
    """Return the pair in front of `value` and the operator of the sum in front of that, where nothing else reads them."""
    pair: list[ir.Node] = []
    here: ir.Value | None = value
    maker = value.producer()
    if qdq.is_dequantize(maker):
        quantize = None if maker.inputs[0] is None else calls.quantize_of(maker.inputs[0])
        while maker is not None and quantize is not None and maker is not quantize and _reads_once(here):
            pair.append(maker)
            here = maker.inputs[0]
            maker = query.producer(here)
        if quantize is None or maker is not quantize or not _reads_once(here):
            return None
        pair.append(quantize)
        here = quantize.inputs[0]
        maker = query.producer(here)
    if here is None or maker is None or maker.domain or not _reads_once(here):
        return None
    if maker.op_type == "Mul" and sum(numbers(v) is not None for v in maker.inputs) != 1:
        return None
    if maker.op_type == "Div" and numbers(maker.inputs[1]) is None:
        return None
    return (pair, maker) if maker.op_type in _OPERATORS else None


def _reads_once(value: ir.Value | None) -> bool:
    return value is not None and query.reads(value) == 1 and not value.is_graph_output()


def _keeps_shape(constant: Constant, value: ir.Value | None) -> bool:
    """Check whether the product with `constant` has the shape of `value`."""
    if constant.ndim == 0:
        return True
    if value is None or value.shape is None or constant.ndim > value.shape.rank():
        return False
    sizes = list(value.shape)[value.shape.rank() - constant.ndim :]
    return all(size in (1, known) for size, known in zip(constant.shape, sizes, strict=True))
