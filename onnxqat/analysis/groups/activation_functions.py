"""Activation functions that are written out, recognised by their values: Gelu, SiLU, HardSwish and Mish.

Exporters write one function in a dozen forms, with factors at any place. A group of nodes that computes the numbers of a
Gelu from one tensor, element by element, is a Gelu.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat.analysis.groups import matching
from onnxqat.analysis.groups.group import Group
from onnxqat.graph import data_movement, query

Array = npt.NDArray[np.float64]

CURVES = frozenset({"Erf", "Tanh", "Sigmoid", "HardSigmoid", "Softplus", "Exp", "Clip"})
GRID: Array = np.linspace(-8.0, 8.0, 65)  # beyond it these functions are straight lines
TOLERANCE = 1e-5  # constants of 7 digits; the two formulas of Gelu differ by 5e-4
MOST_NODES = 16  # of a function; the longest form seen has 9

_erf = np.frompyfunc(math.erf, 1, 1)


def erf(x: Array) -> Array:
    """The error function."""
    return np.asarray(_erf(x), np.float64)


def sigmoid(x: Array) -> Array:
    """The logistic function; 0 and 1 where the exponential leaves float64."""
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-x)))


def softplus(x: Array) -> Array:
    """``log(1 + exp(x))``, for large values too."""
    return np.asarray(np.logaddexp(0, x))


FORMULAS: dict[tuple[str, str], Callable[[Array], Array]] = {
    ("Gelu", "erf"): lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2))),
    ("Gelu", "tanh"): lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    ("Gelu", "sigmoid"): lambda x: x * sigmoid(1.702 * x),
    ("Silu", ""): lambda x: x * sigmoid(x),
    ("HardSwish", ""): lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    ("Mish", ""): lambda x: x * np.tanh(softplus(x)),
}
"""Functions by kind and form."""

FUNCTIONS = {name: formula(GRID) for name, formula in FORMULAS.items()}
"""Their values on GRID."""


def _clip(x: Array, low: Any = None, high: Any = None) -> Array:
    return np.clip(x, -np.inf if low is None else low, np.inf if high is None else high)


_COMPUTE: dict[str, Callable[..., Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Pow": np.power,
    "Max": lambda *x: np.maximum.reduce(np.broadcast_arrays(*x)),
    "Min": lambda *x: np.minimum.reduce(np.broadcast_arrays(*x)),
    "Neg": np.negative,
    "Reciprocal": np.reciprocal,
    "Sqrt": np.sqrt,
    "Abs": np.abs,
    "Exp": np.exp,
    "Log": np.log,
    "Tanh": np.tanh,
    "Erf": erf,
    "Sigmoid": sigmoid,
    "Softplus": softplus,
    "Relu": lambda x: np.maximum(x, 0),
    "Clip": _clip,
}


def match(curve: ir.Node) -> Group | None:
    """The largest activation function that `curve`, an operator of :data:`CURVES`, is part of; None where there is none."""
    for start in _starts(curve):
        samples, nodes = _computed_from(start, curve)
        if curve.outputs[0] not in samples:
            continue
        for node in reversed(nodes):
            found = _recognized(samples[node.outputs[0]])
            cone = _cone(node, nodes) if found is not None else []
            if found is not None and curve in cone:
                group = Group(found[0], tuple(cone), (start,), node.outputs[0], found[1])
                if group.is_closed:
                    return group
    return None


def _starts(curve: ir.Node) -> Iterator[ir.Value]:
    """Tensors that the function may be one of: the input of the curve, and what that is computed from, nearest first."""
    pending, seen = [curve.inputs[0]], set[ir.Value]()
    while pending and len(seen) < MOST_NODES:
        value = pending.pop(0)
        if value is None or value in seen or query.constant_tensor(value) is not None:
            continue
        seen.add(value)
        yield value
        maker = value.producer()
        if maker is not None and _is_elementwise(maker):
            pending.extend(maker.inputs)


def _computed_from(start: ir.Value, curve: ir.Node) -> tuple[dict[ir.Value, Array], list[ir.Node]]:
    """Values, on the grid, of what is computed from `start` alone, and the nodes that compute it, producers first."""
    samples, nodes = {start: GRID}, list[ir.Node]()
    pending = list(start.consumers())
    with np.errstate(all="ignore"):
        while pending and len(nodes) < MOST_NODES:
            node = pending.pop(0)
            if node in nodes or node.graph is not curve.graph or not _is_elementwise(node):
                continue
            made = _evaluated(node, samples)
            if made is not None:
                nodes.append(node)
                samples[node.outputs[0]] = made
                pending.extend(node.outputs[0].consumers())
    return samples, nodes


def _is_elementwise(node: ir.Node) -> bool:
    known = node.op_type in _COMPUTE or node.op_type in ("HardSigmoid", "HardSwish")
    return not node.domain and (known or data_movement.is_removed(node))


def _evaluated(node: ir.Node, samples: dict[ir.Value, Array]) -> Array | None:
    """The values of a node's result; None where an input is neither known nor one number."""
    if data_movement.is_removed(node):
        first = node.inputs[0]
        return None if first is None else samples.get(first)
    arguments: list[Any] = []
    for value in node.inputs:
        argument = None if value is None else samples.get(value, matching.scalar(value))
        if value is not None and argument is None:
            return None
        arguments.append(argument)
    if node.op_type == "HardSigmoid":
        alpha, beta = query.attribute(node, "alpha", 0.2), query.attribute(node, "beta", 0.5)
        return np.asarray(np.clip(alpha * arguments[0] + beta, 0, 1))
    if node.op_type == "HardSwish":
        return np.asarray(arguments[0] * np.clip(arguments[0] / 6 + 0.5, 0, 1))
    try:
        return np.asarray(_COMPUTE[node.op_type](*arguments), np.float64)
    except TypeError:  # other operands than the operator has
        return None


def _recognized(values: Array) -> tuple[str, str] | None:
    for name, expected in FUNCTIONS.items():
        if values.shape == expected.shape and bool((np.abs(values - expected) <= TOLERANCE).all()):
            return name
    return None


def _cone(last: ir.Node, nodes: list[ir.Node]) -> list[ir.Node]:
    """Those of `nodes` that `last` depends on, in their order, itself at the end."""
    needed, inside = [last], set(nodes)
    found = {last}
    while needed:
        for value in needed.pop().inputs:
            maker = query.producer(value)
            if maker is not None and maker in inside and maker not in found:
                found.add(maker)
                needed.append(maker)
    return [*(node for node in nodes if node in found and node is not last), last]
