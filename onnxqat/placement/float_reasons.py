"""Reasons why a node stays float although the table has a row for its operator."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnxqat.analysis import dataflow
from onnxqat.backends import conditions
from onnxqat.backends.schema import OpRow, Slot
from onnxqat.graph import qdq, query
from onnxqat.ops import operators as ops
from onnxqat.placement.plan_builder import PlanBuilder
from onnxqat.placement.tensor_specs import channel_axis
from onnxqat.types import Remark


def reason(draft: PlanBuilder, node: ir.Node, row: OpRow) -> str | None:
    """Reason why `node` must not be quantized, None if it may be."""
    chosen = draft.selection.reason(node)
    if chosen is not None:
        return chosen
    if node.name in draft.mixed_range:
        return "its inputs have ranges too different for one scale"
    if node not in draft.data_nodes:
        return dataflow.NOT_DATA
    if node in draft.fine:
        return draft.fine[node]
    if draft.backend.first_last_bits == 0 and node in draft.ends:
        return "first or last layer"
    layer = draft.layers_in_float.get(node)
    if layer is not None:
        return f"the activation of {layer}, which stays in float"
    # The integer function gives the end of its grid there.
    if "Log" not in draft.backend.integer and any(map(_leads_to_log, node.outputs)):
        return "a Log reads it, which is infinite at the code of 0"
    probabilities = _of_probabilities(draft, node, row)
    if probabilities is not None:
        return probabilities
    for key in conditions.unmet(node, row.when):
        return f"the backend takes {node.op_type} only {conditions.spelled(key, row.when[key])}"
    sources = [p for v in node.inputs if v is not None and (p := v.producer()) is not None and not p.domain]
    before = next((p.op_type for p in sources if p.op_type in row.not_behind), None)
    if before is not None:
        return f"the backend leaves {node.op_type} behind {before} in float"
    if row.computed and any(query.constant_tensor(v) is not None for v in node.inputs):
        return f"the backend takes {node.op_type} of computed tensors alone"
    for index, value in enumerate(node.inputs):
        found = _of_input(draft, node, row.input_slot(index), index, value)
        if found is not None:
            return found
    return None


def _leads_to_log(value: ir.Value) -> bool:
    return dataflow.leads_to(value, frozenset({"Log"}), ops.is_passthrough)


def _of_probabilities(draft: PlanBuilder, node: ir.Node, row: OpRow) -> str | None:
    if draft.backend.io.probabilities == "quantize":
        return None
    bounded = any(s.fixed is not None for s in row.outputs) or (row.outputs and _is_probability(node))
    if bounded and any(map(dataflow.leads_to_output, node.outputs)):
        return "a probability that leaves the graph needs finer steps"
    if node.op_type == "Concat" and dataflow.joins_probabilities(node):
        return "joins probabilities that leave the graph"
    return None


def is_last_probability(draft: PlanBuilder, value: ir.Value) -> bool:
    """Check whether `value`, the end of a fused chain, is a probability that leaves the graph and stays float there."""
    node = value.producer()
    if node is None or draft.backend.io.probabilities != "float":
        return False
    return _is_probability(node) and dataflow.leads_to_output(value)


def _is_probability(node: ir.Node) -> bool:
    row = ops.of(node)
    return row is not None and row.output_range == (0.0, 1.0)


def without_data(draft: PlanBuilder, node: ir.Node) -> Iterator[Remark]:
    """A remark where the weight of a MatMul is computed, but not from data: it gets one scale, as an activation."""
    value = node.inputs[1] if node.op_type == "MatMul" and len(node.inputs) > 1 else None
    producer = query.producer(value)
    if value is None or query.constant_tensor(value) is not None or qdq.is_dequantize(producer):
        return
    if producer is not None and producer not in draft.data_nodes and not any(dataflow.branches(producer)):
        text = f"its weight {_producer_text(value)}: it is quantized like an activation, with one scale"
        yield Remark(text, (query.label(node),), "plan")


def _producer_text(value: ir.Value) -> str:
    """Text for a remark that names the producer of a tensor that is not constant."""
    producer = value.producer()
    if producer is None:
        return f"{value.name!r} is an input, not constant"
    return f"{value.name!r} is computed by {query.label(producer)} ({producer.op_type}), not constant"


def _of_input(draft: PlanBuilder, node: ir.Node, slot: Slot | None, index: int, value: ir.Value | None) -> str | None:
    """Return the reason for which input `index` keeps its node in float; None if it can be quantized."""
    if slot is None or slot.use is None or value is None:
        return None
    if qdq.is_dequantize(value.producer()):
        return None
    if not draft.backend.types[slot.use].observed:
        return None
    if value in draft.unpaired:
        maker = draft.unpaired[value]
        return f"{maker}, which stays in float, would run on integers if its result {value.name!r} were quantized"
    if value.dtype != ir.DataType.FLOAT:
        known = "unknown" if value.dtype is None else value.dtype.name.lower()
        return f"input {index} has type {known}; only float32 is quantized"
    constant = query.constant_array(value)
    if constant is None and draft.masks.carries(value):
        return f"input {index} carries a mask, which no scale fits beside numbers"
    if constant is None:
        return f"its weight {_producer_text(value)}" if node.op_type != "MatMul" and slot.axis is not None else None
    kind = draft.backend.types[slot.use]
    if kind.granularity == "block" and constant.ndim != 2:
        return "only a weight with two axes is cut into blocks"
    if kind.block and kind.whole_blocks and (rows := constant.shape[channel_axis(node, slot, value) or 0]) % kind.block:
        return f"the target takes full blocks alone, and {rows} is no multiple of {kind.block}"
    if constant.size == 0:
        return f"constant {value.name!r} is empty"
    if draft.masks.masks(node, constant) or value.name in draft.masked:
        return f"constant {value.name!r} is a mask or not finite"
    return None
