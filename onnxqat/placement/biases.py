"""Biases whose scale follows from the activation's and the weight's."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxqat.backends.schema import OpRow
from onnxqat.graph import qdq, query
from onnxqat.ops import operators as ops
from onnxqat.placement.plan_builder import PlanBuilder
from onnxqat.placement.tensor_specs import output_axis
from onnxqat.types import Derived, Edge, Remark


def derive(draft: PlanBuilder, node: ir.Node, row: OpRow, key: str) -> None:
    """Plan the bias of `node` on the grid of its accumulator, or say why it stays float."""
    slot, definition = row.input_slot(2), ops.of(node)
    bias = query.input_at(node, 2)
    if slot is None or slot.use is None or bias is None or definition is None:
        return
    kind = draft.backend.types[slot.use]
    if definition.role(2) != "bias" and kind.derive is None:  # the offset of a normalization, where the row derives it
        return
    if kind.observed or qdq.is_dequantize(bias.producer()):
        return
    reason = _refusal(node, bias, kind.derive is not None)
    if reason is not None:
        draft.remarks.append(
            Remark(f"bias {bias.name!r} of {query.label(node)} stays float: {reason}", (str(node.name),), "plan")
        )
        return
    activation, weight = (str(v.name) for v in node.inputs[:2] if v is not None)
    derived = Derived(activation, weight, "float" if kind.dtype == "float" else "int32", kind.bits or 32)
    draft.biases.append(Edge(str(bias.name), derived, f"{key} bias", ((str(node.name), 2),)))


def _refusal(node: ir.Node, bias: ir.Value, derived: bool) -> str | None:
    if not derived:
        return "the backend wants it so"
    weight, constant = node.inputs[1], query.constant_array(bias)
    if constant is None or bias.dtype != ir.DataType.FLOAT:
        return "it is computed"
    if weight is None or (query.constant_tensor(weight) is None and not qdq.is_dequantize(weight.producer())):
        return "the weight is computed"
    if weight.shape is not None and len(weight.shape) <= output_axis(node):
        return "the weight's shape does not fit the node"
    channels = weight.shape[output_axis(node)] if weight.shape is not None else None
    if node.op_type == "Gemm" and constant.shape != (channels,):
        return f"shape {constant.shape} is not one value an output channel"
    if node.op_type == "Gemm" and (query.attribute(node, "alpha", 1.0), query.attribute(node, "beta", 1.0)) != (
        1.0,
        1.0,
    ):
        return "Gemm has alpha or beta"
    return None if np.isfinite(constant).all() else "it is not finite"
