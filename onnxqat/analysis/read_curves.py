"""Functions of single tensors, element by element, through which alone the rest of a network reads them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat.analysis import dataflow
from onnxqat.analysis.groups import find as groups
from onnxqat.analysis.groups.activation_functions import FORMULAS, sigmoid, softplus
from onnxqat.graph import query
from onnxqat.integer_functions.functions import selu

Array = npt.NDArray[np.float64]
Curve = Callable[[Array], Array]
"""Function of float64 values of any shape, element by element."""


@dataclasses.dataclass(frozen=True)
class HardSigmoid:
    """A line of this slope and offset, clipped to [0, 1].

    The one curve that lays equal steps on equal steps with an offset between them, so that all its values may lie
    half-way between the codes behind it.
    """

    slope: float
    offset: float

    def __call__(self, x: Array) -> Array:
        """The values at `x`, float64 of any shape."""
        return np.clip(self.slope * x + self.offset, 0, 1)


def find(graph: ir.Graph) -> dict[str, Curve]:
    """The curves of `graph` and of the branches of If in it, by the tensor that each reads.

    A tensor has one where all that reads it is one activation function, in one operator or written out as in
    ``x * sigmoid(x)``.
    """
    found = {str(value.name): curve for node in dataflow.in_order(graph) for value, curve in _of_node(node)}
    for group in groups.find(graph):
        formula, value = FORMULAS.get((group.kind, group.form)), group.inputs[0]
        if formula is not None and value is not None and _is_read_by(value, group.nodes):
            found[str(value.name)] = formula
    return found


def _is_read_by(value: ir.Value, nodes: tuple[ir.Node, ...]) -> bool:
    return not value.is_graph_output() and all(user in nodes for user in value.consumers())


def _of_node(node: ir.Node) -> Iterator[tuple[ir.Value, Curve]]:
    made = None if node.domain else _CURVES.get(node.op_type)
    value = node.inputs[0] if made is not None else None
    if made is not None and value is not None and _is_read_by(value, (node,)):
        yield value, made(node)


def _number(node: ir.Node, name: str, default: float) -> float:
    return float(query.attribute(node, name, default))


def _gelu(node: ir.Node) -> Curve:
    return FORMULAS["Gelu", "tanh" if query.attribute(node, "approximate", "none") == "tanh" else "erf"]


def _leaky_relu(node: ir.Node) -> Curve:
    slope = _number(node, "alpha", 0.01)
    return lambda x: np.where(x < 0, slope * x, x)


def _elu(node: ir.Node) -> Curve:
    height = _number(node, "alpha", 1.0)
    return lambda x: np.where(x < 0, height * np.expm1(np.minimum(x, 0)), x)


def _celu(node: ir.Node) -> Curve:
    width = _number(node, "alpha", 1.0) or 1.0  # 0 has no value anywhere
    return lambda x: np.maximum(x, 0) + np.minimum(width * np.expm1(np.minimum(x, 0) / width), 0)


def _selu(node: ir.Node) -> Curve:
    height, slope = _number(node, "alpha", selu.ALPHA), _number(node, "gamma", selu.GAMMA)
    return lambda x: slope * np.where(x < 0, height * np.expm1(np.minimum(x, 0)), x)


def _hard_sigmoid(node: ir.Node) -> Curve:
    return HardSigmoid(_number(node, "alpha", 0.2), _number(node, "beta", 0.5))


_CURVES: dict[str, Callable[[ir.Node], Curve]] = {
    "Celu": _celu,
    "Elu": _elu,
    "Gelu": _gelu,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": lambda _: FORMULAS["HardSwish", ""],
    "LeakyRelu": _leaky_relu,
    "Mish": lambda _: FORMULAS["Mish", ""],
    "Relu": lambda _: lambda x: np.maximum(x, 0),
    "Selu": _selu,
    "Sigmoid": lambda _: sigmoid,
    "Softplus": lambda _: softplus,
    "Tanh": lambda _: np.tanh,
}
"""Operators of one input, but for those whose form depends on tensors."""
