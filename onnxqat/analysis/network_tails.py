"""Nodes behind the last layer that compute no features: selection of rows, and boxes decoded from anchor grids."""

from __future__ import annotations

import onnx_ir as ir

from onnxqat.analysis import dataflow
from onnxqat.graph import layers, linear, query
from onnxqat.ops import operators as ops

SELECTED = "behind {}, with no layer behind it: what was selected is a result, not a feature"
DECODED = "computes places from a table of anchors or grid points, which coarse steps would move"
SELECTS = frozenset({"TopK", "NonMaxSuppression"})
LAYERS = frozenset({*layers.LAYERS, *layers.RECURRENT, "Attention", "Einsum"})
ARITHMETIC = frozenset({"Add", "Sub", "Mul", "Div"})
LEADS = ARITHMETIC | {"Exp", "Neg", "Clip", "Relu", "Sigmoid", "Pow", "Tanh", "Max", "Min"}


def parts(graph: ir.Graph) -> dict[ir.Node, str]:
    """Nodes of tails, with the reasons to leave them in float.

    1. What depends on a TopK or NonMaxSuppression, where no layer with weights comes behind. A decoder behind a TopK
       goes on as any network does.
    2. Where no such layer comes behind: sums and products with a constant that differs along two axes or more, which is
       a table of anchors or of grid points and not a per-channel factor, with the elementwise nodes that lead to them
       and everything behind them.
    """
    order = list(dataflow.in_order(graph))
    behind = _in_front_of_layers(order)
    tail = [node for node in order if node not in behind and node.op_type not in LAYERS]
    inside = set(tail)
    found: dict[ir.Node, str] = {}
    for node in tail:
        makers = [p for v in node.inputs if v is not None and (p := v.producer()) is not None]
        before = next((found[p] for p in makers if p in found), None)
        selects = next((p.op_type for p in makers if p.op_type in SELECTS and not p.domain), None)
        if before is not None:
            found[node] = before
        elif selects is not None and node.op_type not in SELECTS:
            found[node] = SELECTED.format(selects)
        elif _reads_places(node):
            found[node] = DECODED
    for node in reversed(tail):
        leads = node.op_type in LEADS or ops.is_passthrough(node)
        users = node.successors()
        if node not in found and leads and users and all(found.get(user) == DECODED for user in users):
            found[node] = DECODED
    return {node: reason for node, reason in found.items() if node in inside}


def _in_front_of_layers(order: list[ir.Node]) -> set[ir.Node]:
    """Nodes behind which a layer with weights comes, or something that is unknown."""
    found: set[ir.Node] = set()
    for node in reversed(order):
        if any(user in found or user.op_type in LAYERS or _is_opaque(user) for user in node.successors()):
            found.add(node)
    return found


def _is_opaque(node: ir.Node) -> bool:
    return bool(node.domain) or node.op_type in ("Loop", "Scan", "If")


def _reads_places(node: ir.Node) -> bool:
    """Check whether `node` computes with a constant of two or more axes above size 1 that is not a layer's bias."""
    if node.domain or node.op_type not in ARITHMETIC:
        return False
    constants = [t for v in node.inputs if (t := query.constant_tensor(v)) is not None]
    if len(constants) != 1 or sum(size > 1 for size in constants[0].shape.numpy()) < 2:
        return False
    makers = (v.producer() for v in node.inputs if v is not None)
    return not any(maker is not None and linear.bias_behind(maker) is node for maker in makers)
