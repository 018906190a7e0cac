"""Tensors between operators that a compiler computes in one float kernel: they carry no pair."""

from __future__ import annotations

import onnx_ir as ir

from onnxqat.graph import query
from onnxqat.placement.plan_builder import Consumer, PlanBuilder

REASON = "only operators in float read it, and the compiler fuses it with them: a pair would be one step more"


def leave_bare(draft: PlanBuilder) -> None:
    """Take the pair from every tensor that only float kernels read, and that its maker can give in float.

    OpenVINO generates one kernel ("Subgraph") for a chain of elementwise operators, which computes in float even where
    pairs stand in it: those of a rotary embedding, or between the scores of an attention and their Softmax, only add
    work and noise. A tensor keeps its pair where an integer kernel reads it, or where it is computed from the result of
    a kernel that gives no float, such as a convolution.
    """
    if not any(row.elementwise for row in draft.backend.ops.values()):
        return
    nodes = [node for graph in draft.graphs for node in graph]
    rounded: set[ir.Value] = set()
    for node in nodes:
        rounded.update(value for value in node.outputs if _is_rounded(draft, value, node, rounded))
    in_float: set[ir.Value] = set()
    for node in reversed(nodes):
        for value in node.outputs:
            if not value.is_graph_output() and all(_reads_float(draft, n, i, in_float) for n, i in value.uses()):
                in_float.add(value)
                if value not in rounded or _joins(draft, node):
                    _strip(draft, value, node)


def _joins(draft: PlanBuilder, node: ir.Node) -> bool:
    """Check whether `node` is a Concat with a row: it only moves what it reads."""
    return node.op_type == "Concat" and draft.row(node)[0] is not None


def _is_elementwise(draft: PlanBuilder, node: ir.Node) -> bool:
    row, _ = draft.row(node)
    return row is not None and row.elementwise


def _is_rounded(draft: PlanBuilder, value: ir.Value, node: ir.Node, rounded: set[ir.Value]) -> bool:
    """Check whether `value` comes out of a kernel that gives no float, also behind data movement and sums."""
    if draft.spreads(node) or _joins(draft, node) or _is_elementwise(draft, node):
        return not rounded.isdisjoint(v for v in node.inputs if v is not None)
    tensor = draft.tensors.get(str(value.name))
    return tensor is not None and tensor.produced is not None and value not in draft.float_capable


def _reads_float(draft: PlanBuilder, node: ir.Node, index: int, in_float: set[ir.Value]) -> bool:
    """Check whether input `index` of `node` needs no codes: it is in float, elementwise, or moves data to such nodes."""
    consumer = str(node.name), index
    if (index == 0 and draft.spreads(node) and draft.moves_float(node)) or (
        consumer in draft.wants and _joins(draft, node)
    ):
        return all(v in in_float for v in node.outputs if query.is_used(v))
    return consumer not in draft.wants or consumer in draft.flexible


def _strip(draft: PlanBuilder, value: ir.Value, node: ir.Node) -> None:
    """Take the pair of `value`, made by `node`, and what its readers want of it; a Concat wants nothing then."""
    tensor = draft.tensors.pop(str(value.name), None)
    if tensor is None:
        return
    for consumer in [c for consumers in tensor.wanted.values() for c in consumers]:
        del draft.wants[consumer]
    if tensor.produced is not None and (_is_elementwise(draft, node) or _joins(draft, node)):
        draft.float_nodes.append((query.label(node), REASON))
    if _joins(draft, node):
        draft.sharing = [entry for entry in draft.sharing if entry[0] is not node]
        for index, source in enumerate(node.inputs):
            if source is not None:
                _forget(draft, source, (str(node.name), index))


def _forget(draft: PlanBuilder, value: ir.Value, consumer: Consumer) -> None:
    decision, tensor = draft.wants.pop(consumer, None), draft.tensors.get(str(value.name))
    if decision is not None and tensor is not None:
        tensor.wanted[decision].remove(consumer)
        tensor.wanted = {d: consumers for d, consumers in tensor.wanted.items() if consumers}
