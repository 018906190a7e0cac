"""Nodes left in float that a compiler would nevertheless run on codes if they stood between two pairs."""

from __future__ import annotations

import onnx_ir as ir

from onnxqat.graph import data_movement, qdq, query
from onnxqat.ops import operators as ops
from onnxqat.placement.plan_builder import PlanBuilder

CLIPS = frozenset({"Relu", "Clip"})


def keep_float(draft: PlanBuilder, node: ir.Node) -> None:
    """Keep pairs off the outputs of `node`, left in float, if the table says that the compiler claims its operator.

    Between two pairs, onnxruntime rounds the float weight of a convolution with one scale for all channels, and runs
    pools in integer kernels that count padding differently: a node stays float only where one of its sides has no pair.
    onnxruntime looks through Relu and Clip for a pair, and moves quantizers through data movement.
    """
    if node.domain or node.op_type not in draft.backend.claims or not _reads_codes(draft, node) or _is_computed(node):
        return
    pending = list(node.outputs)
    while pending:
        value = pending.pop()
        if value not in draft.unpaired:
            draft.unpaired[value] = query.label(node)
            pending.extend(v for user in value.consumers() if _passes(draft, user) for v in user.outputs)


def _passes(draft: PlanBuilder, node: ir.Node) -> bool:
    return draft.spreads(node) or data_movement.is_removed(node) or (node.op_type in CLIPS and not node.domain)


def _reads_codes(draft: PlanBuilder, node: ir.Node) -> bool:
    """Check whether the first input of `node` may come out of a pair.

    A pair for another consumer is read by that consumer alone; only data movement carries it to all readers.
    """
    reader, value = node, node.inputs[0]
    while value is not None and value not in draft.unpaired:
        tensor, producer = draft.tensors.get(str(value.name)), value.producer()
        moved = producer is not None and draft.spreads(producer)
        if qdq.is_dequantize(producer) or (tensor is not None and tensor.produced is not None):
            return True
        if (moved or reader is not node) and any(_may_want(draft, u) for u in value.consumers() if u is not reader):
            return True
        if producer is None or not moved:
            return False
        reader, value = producer, producer.inputs[0]
    return False


def _may_want(draft: PlanBuilder, node: ir.Node) -> bool:
    return not draft.selection.reason(node) and (draft.spreads(node) or draft.row(node)[0] is not None)


def _is_computed(node: ir.Node) -> bool:
    """Check whether a weight of `node` is computed: no compiler rounds such a weight."""
    row = ops.of(node)
    weights = [v for i, v in enumerate(node.inputs) if v is not None and row is not None and row.role(i) == "weight"]
    return any(query.constant_tensor(v) is None for v in weights)
