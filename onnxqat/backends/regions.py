"""Parts of a graph that matter to placement: where data flows, and the first and last weighted layers."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from onnxqat.graph import query
from onnxqat.ops import _base as ops

CONVERSIONS = frozenset({"Cast", "CastLike"})
PARAMETERS_ARE_DATA = frozenset({"LSTM", "GRU", "RNN", "Where"})
WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})


def data_nodes(graph: ir.Graph) -> frozenset[ir.Node]:
    """Nodes that compute data: they depend on a float graph input's values, and their result matters as values.

    Left out: arithmetic on shapes and constants (nothing of it depends on data), and computations whose results are
    only used as indices, shapes or bounds (for example in front of Cast to integers, TopK or NonMaxSuppression).
    """
    return _depends_on_input(graph) & _reaches_value_use(graph)


def _depends_on_input(graph: ir.Graph) -> frozenset[ir.Node]:
    live = {id(v) for v in graph.inputs if v.const_value is None}
    found: set[ir.Node] = set()
    for node in graph:
        if node.op_type in ("Shape", "Size", "Constant"):
            continue
        captured = (v for attribute in node.attributes.values() for v in _captures(attribute))
        if any(id(v) in live for v in (*node.inputs, *captured) if v is not None):
            found.add(node)
            live.update(id(v) for v in node.outputs)
    return frozenset(found)


def _captures(attribute: ir.Attr) -> list[ir.Value]:
    if attribute.type == ir.AttributeType.GRAPH:
        graphs = [attribute.as_graph()]
    elif attribute.type == ir.AttributeType.GRAPHS:
        graphs = list(attribute.as_graphs())
    else:
        return []
    return [v for g in graphs for n in g.all_nodes() for v in n.inputs if v is not None]


def _reaches_value_use(graph: ir.Graph) -> frozenset[ir.Node]:
    useful: set[ir.Node] = set()
    for node in reversed(list(graph)):
        for value in node.outputs:
            uses = value.uses()
            if value.is_graph_output() or any(
                user.graph is not graph or _is_value_use(user, index, useful) for user, index in uses
            ):
                useful.add(node)
                break
    return frozenset(useful)


def _is_value_use(user: ir.Node, index: int, useful: set[ir.Node]) -> bool:
    row = ops.find(user.domain, user.op_type)
    if row is None or user.op_type in ("If", "Loop", "Scan"):
        return True
    if user.op_type in CONVERSIONS:
        return user in useful and user.outputs[0].dtype in (None, *query.FLOATS)
    if row.role(index) == "parameter" and user.op_type not in PARAMETERS_ARE_DATA:
        return False
    return user in useful


def first_and_last(graph: ir.Graph) -> frozenset[ir.Node]:
    """Weighted layers (constant weight) that no other weighted layer comes before, and those none comes behind."""
    weighted = {n for n in graph if n.op_type in WEIGHTED and _has_constant_weight(n)}
    order = list(graph)
    first = _frontier(order, weighted, lambda n: [p for v in n.inputs if v is not None and (p := v.producer())])
    last = _frontier(order[::-1], weighted, lambda n: [u for v in n.outputs for u in v.consumers()])
    return frozenset(first | last)


def _has_constant_weight(node: ir.Node) -> bool:
    return len(node.inputs) > 1 and query.constant_tensor(node.inputs[1]) is not None


def _frontier(
    order: list[ir.Node], weighted: set[ir.Node], neighbours: Callable[[ir.Node], list[ir.Node]]
) -> set[ir.Node]:
    behind: set[ir.Node] = set()
    found: set[ir.Node] = set()
    for node in order:
        reached = any(n in behind or n in weighted for n in neighbours(node))
        if reached:
            behind.add(node)
        elif node in weighted:
            found.add(node)
    return found


def leads_to_output(value: ir.Value) -> bool:
    """Whether only data movement separates `value` from a graph output."""
    pending, seen = [value], set[int]()
    while pending:
        current = pending.pop()
        if current.is_graph_output():
            return True
        for user in current.consumers():
            row = ops.find(user.domain, user.op_type)
            moves = row is not None and (row.passthrough or user.op_type == "Concat")
            if id(user) not in seen and moves:
                seen.add(id(user))
                pending.extend(user.outputs)
    return False


def joins_probabilities(node: ir.Node) -> bool:
    """Whether `node` leads to a graph output, and only data movement separates it from an operator of bounded range.

    A detector's last Concat is such: its one scale would have to suit boxes and scores alike.
    """
    if not any(map(leads_to_output, node.outputs)):
        return False
    pending, seen = [v for v in node.inputs if v is not None], set[int]()
    while pending:
        producer = pending.pop().producer()
        row = ops.find(producer.domain, producer.op_type) if producer is not None else None
        if producer is None or row is None or id(producer) in seen:
            continue
        seen.add(id(producer))
        if row.output_range is not None:
            return True
        if row.passthrough or producer.op_type == "Concat":
            pending.extend(v for v in producer.inputs if v is not None)
    return False
