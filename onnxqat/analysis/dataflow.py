"""Parts of a model that matter to placement: where data flows, and the first and last weighted layers.

Placement reaches the main graph and the branches of every If, at any depth. What flows out of a branch is an output of
its If. Bodies of Loop and Scan, and model-local functions, are opaque: what goes in is used, what comes out is data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import onnx_ir as ir

from onnxqat.graph import query, walk
from onnxqat.graph.layers import LAYERS, RECURRENT
from onnxqat.ops import operators as ops

CONVERSIONS = frozenset({"Cast", "CastLike"})
PARAMETERS_ARE_DATA = frozenset({*RECURRENT, "Where"})
NOT_DATA = "computes shapes, indices or constants, not data"
"""Why a node outside of :func:`data_nodes` stays float."""


def reached_graphs(graph: ir.Graph) -> Iterator[ir.Graph]:
    """The graphs that placement reaches: `graph` and the branches of If in it, outermost first."""
    yield graph
    for node in graph:
        for branch in branches(node):
            yield from reached_graphs(branch)


def branches(node: ir.Node) -> Iterator[ir.Graph]:
    """The branches of an If; nothing for other nodes."""
    if node.op_type == "If" and node.domain == "":
        yield from walk.subgraphs(node)


def in_order(graph: ir.Graph) -> Iterator[ir.Node]:
    """Every node that placement reaches; those of a branch come right in front of their If."""
    for node in graph:
        for branch in branches(node):
            yield from in_order(branch)
        yield node


def behind(nodes: Iterable[ir.Node]) -> set[ir.Node]:
    """`nodes` and all that depend on what they return, in any graph, with the nodes that hold those graphs."""
    pending = list(nodes)
    seen = set(pending)
    while pending:
        node = pending.pop()
        holder = walk.holder(node.graph) if isinstance(node.graph, ir.Graph) else None
        for reached in (*node.successors(), *([] if holder is None else [holder])):
            if reached not in seen:
                seen.add(reached)
                pending.append(reached)
    return seen


# ------------------------------------------------------------------ data
def data_nodes(graph: ir.Graph) -> frozenset[ir.Node]:
    """Nodes that compute data: they depend on a float graph input's values, and their result matters as values.

    Left out: arithmetic on shapes and constants (nothing of it depends on data), and computations whose results are
    only used as indices, shapes or bounds (for example in front of Cast to integers, TopK or NonMaxSuppression).
    """
    order = list(in_order(graph))
    return _depends_on_input(graph, order) & _reaches_value_use(order)


def _depends_on_input(graph: ir.Graph, order: list[ir.Node]) -> frozenset[ir.Node]:
    live = {id(v) for v in graph.inputs if v.const_value is None}
    found: set[ir.Node] = set()
    for node in order:
        if node.op_type in ("Shape", "Size", "Constant"):
            continue
        captured = (v for body in walk.subgraphs(node) for n in body.all_nodes() for v in n.inputs)
        if any(id(v) in live for v in (*node.inputs, *captured) if v is not None):
            found.add(node)
            live.update(id(v) for v in node.outputs)
    return frozenset(found)


def _reaches_value_use(order: list[ir.Node]) -> frozenset[ir.Node]:
    reached, useful = set(order), set[ir.Node]()
    for node in reversed(order):
        for value in node.outputs:
            opaque = any(user not in reached for user, _ in value.uses())
            if opaque or value.is_graph_output() or any(_is_value_use(u, i, useful) for u, i in value.uses()):
                useful.add(node)
                break
    return frozenset(useful)


def _is_value_use(user: ir.Node, index: int, useful: set[ir.Node]) -> bool:
    row = ops.of(user)
    if row is None or user.op_type in ("If", "Loop", "Scan"):
        return True
    if user.op_type in CONVERSIONS:
        return user in useful and user.outputs[0].dtype in (None, *query.FLOATS)
    if row.role(index) == "parameter" and user.op_type not in PARAMETERS_ARE_DATA:
        return False
    return user in useful


# ------------------------------------------------------------------ first and last layers
def first_and_last(graph: ir.Graph) -> frozenset[ir.Node]:
    """Weighted layers (constant weight) that no other weighted layer comes before, and those none comes behind."""
    order = list(in_order(graph))
    weighted = {n for n in order if n.op_type in LAYERS and _has_constant_weight(n)}
    first = _frontier(order, weighted, _nodes_before)
    last = _frontier(order[::-1], weighted, _nodes_behind)
    return frozenset(first | last)


def _has_constant_weight(node: ir.Node) -> bool:
    return len(node.inputs) > 1 and query.constant_tensor(node.inputs[1]) is not None


def _nodes_before(node: ir.Node) -> list[ir.Node]:
    sources = (*node.inputs, *(v for branch in branches(node) for v in branch.outputs))
    return [p for v in sources if v is not None and (p := v.producer()) is not None]


def _nodes_behind(node: ir.Node) -> list[ir.Node]:
    holders = (walk.holder(node.graph) for v in node.outputs if v.is_graph_output())
    return [*(u for v in node.outputs for u in v.consumers()), *(h for h in holders if h is not None)]


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


# ------------------------------------------------------------------ walks over data movement
def leaves_model(value: ir.Value) -> bool:
    """Check whether `value` is an output of the main graph (or of an opaque body), itself or returned by an If."""
    return any(v.is_graph_output() and not _is_branch_output(v) for v in _walk([value], _returned_as))


def leads_to_output(value: ir.Value) -> bool:
    """Check whether only data movement separates `value` from an output of the model."""
    return any(map(leaves_model, _walk([value], _moved_to)))


def joins_probabilities(node: ir.Node) -> bool:
    """Check whether only data movement separates `node` from a graph output and from an operator of bounded range.

    The last Concat of a detector is an example: its one scale would have to fit boxes and scores alike.
    """
    if not any(map(leads_to_output, node.outputs)):
        return False
    return any(map(_is_bounded, _walk((v for v in node.inputs if v is not None), _moved_from)))


def _walk(starts: Iterable[ir.Value], neighbours: Callable[[ir.Value], Iterable[ir.Value]]) -> Iterator[ir.Value]:
    """`starts` and all that `neighbours` leads to from there, each value once."""
    pending, seen = list(starts), set[int]()
    while pending:
        value = pending.pop()
        if id(value) not in seen:
            seen.add(id(value))
            yield value
            pending.extend(neighbours(value))


def _moved_to(value: ir.Value) -> Iterator[ir.Value]:
    for user in value.consumers():
        if _moves_data(user):
            yield from user.outputs
    yield from _returned_as(value)


def _moved_from(value: ir.Value) -> Iterator[ir.Value]:
    producer = value.producer()
    if producer is not None and _moves_data(producer):
        yield from (v for v in producer.inputs if v is not None)
    yield from returned_by(value)


def _returned_as(value: ir.Value) -> Iterator[ir.Value]:
    """The outputs of an If that `value`, an output of a branch, becomes."""
    producer = value.producer()
    holder = walk.holder(producer.graph) if producer is not None and value.is_graph_output() else None
    if producer is not None and holder is not None and any(True for _ in branches(holder)):
        outputs = next(g for g in branches(holder) if g is producer.graph).outputs
        yield from (holder.outputs[i] for i, output in enumerate(outputs) if output is value)


def returned_by(value: ir.Value) -> Iterator[ir.Value]:
    """Yield the branch outputs that `value`, an output of an If, returns; nothing for other values."""
    node = value.producer()
    if node is not None:
        yield from (v for branch in branches(node) if (v := branch.outputs[value.index() or 0]) is not None)


def _is_branch_output(value: ir.Value) -> bool:
    return any(True for _ in _returned_as(value))


def _moves_data(node: ir.Node) -> bool:
    row = ops.of(node)
    return row is not None and (row.passthrough or node.op_type == "Concat")


def _is_bounded(value: ir.Value) -> bool:
    producer = value.producer()
    row = ops.of(producer) if producer is not None else None
    return row is not None and row.output_range is not None


def leads_to(value: ir.Value, operators: frozenset[str], passes: Callable[[ir.Node], bool]) -> bool:
    """Check whether one of ONNX's `operators` reads `value`, directly or behind nodes that `passes` accepts."""
    pending, seen = [value], {value}
    while pending:
        for user in pending.pop().consumers():
            if user.op_type in operators and not user.domain:
                return True
            new = [output for output in user.outputs if output not in seen] if passes(user) else []
            seen.update(new)
            pending.extend(new)
    return False
