"""Activation functions that are written out in elementary operators, such as Gelu, Mish or Softplus."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from onnxqat.analysis import dataflow
from onnxqat.graph import linear, query

REASON = "part of an activation that is written out, whose {} the backend computes in float"
CURVES = frozenset({"Erf", "Exp", "Log", "Tanh", "Softplus", "Pow", "Sin", "Cos", "Atan"})
POINTWISE = CURVES | {"Add", "Sub", "Mul", "Div", "Neg", "Reciprocal", "Sqrt", "Abs", "Sigmoid", "Max", "Min"}


def parts(graph: ir.Graph, kernels: Collection[str]) -> dict[ir.Node, str]:
    """Nodes of functions of one tensor, element by element, that hang together with a curve without a kernel: reasons.

    ``0.5 * x * (1 + erf(x / sqrt(2)))`` (Gelu), the same by Tanh and Pow, ``x * tanh(log(1 + exp(x)))`` (Mish),
    ``x / (1 + exp(-x))`` (SiLU). Where the curve is computed in float, integer kernels for the sums and products around
    it only add roundings and conversions, and keep compilers from fusing the whole.

    Args:
        graph: main graph.
        kernels: operators that the backend has a row for; a curve among them stays between its pairs.
    """
    sources: dict[ir.Value, ir.Value] = {}
    members: dict[ir.Value, list[ir.Node]] = {}
    for node in dataflow.in_order(graph):
        found = _source(node, sources)
        if found is not None:
            sources[node.outputs[0]] = found
            members.setdefault(found, []).append(node)
    reasons: dict[ir.Node, str] = {}
    for nodes in members.values():
        curve = next((n.op_type for n in nodes if n.op_type in CURVES and n.op_type not in kernels), None)
        if curve is not None:
            reasons |= dict.fromkeys(_connected(nodes, kernels), REASON.format(curve))
    return reasons


def _source(node: ir.Node, sources: dict[ir.Value, ir.Value]) -> ir.Value | None:
    """The tensor that `node` is a function of, element by element; None where that is not exactly one."""
    if node.domain or node.op_type not in POINTWISE or _is_bias(node):
        return None
    computed = [v for v in node.inputs if v is not None and query.constant_tensor(v) is None]
    found = {sources.get(v, v) for v in computed}
    return found.pop() if len(found) == 1 else None


def _is_bias(node: ir.Node) -> bool:
    """Check whether `node` is the Add of a matrix product's bias, which belongs to that layer."""
    makers = [v.producer() for v in node.inputs if v is not None]
    return node.op_type == "Add" and any(p is not None and linear.bias_behind(p) is node for p in makers)


def _connected(nodes: list[ir.Node], kernels: Collection[str]) -> set[ir.Node]:
    """Return those of `nodes`, in graph order, that depend on a curve without a kernel or lead to such a node."""
    inside = set(nodes)
    found: set[ir.Node] = set()
    for node in nodes:
        made = (v.producer() for v in node.inputs if v is not None)
        if (node.op_type in CURVES and node.op_type not in kernels) or any(p in found for p in made):
            found.add(node)
    for node in reversed(nodes):
        if any(user in found and user in inside for user in node.successors()):
            found.add(node)
    return found
