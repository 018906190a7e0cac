"""Specs of tensors from the table's slot and the node: type, widths, channel axis, prescribed parameters."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxqat import numerics
from onnxqat.analysis import signs
from onnxqat.backends.schema import OpRow, Slot
from onnxqat.graph import query
from onnxqat.ops import operators as ops
from onnxqat.placement import node_rules
from onnxqat.placement.plan_builder import PlanBuilder
from onnxqat.types import Decision, Fixed, QParams, Role, TensorSpec


def of_input(draft: PlanBuilder, node: ir.Node, row: OpRow, index: int) -> Decision | None:
    """Decision of `row` for input `index` of `node`, None if that input takes no part in quantization."""
    slot, value = row.input_slot(index), node.inputs[index]
    if slot is None or slot.use is None or value is None or not draft.backend.types[slot.use].observed:
        return None
    constant = query.constant_tensor(value) is not None
    if "float" in (row.constants, slot.constants) and draft.is_constant(value):
        return None
    if slot.axis is not None and not constant:
        slot = next((s for s in row.inputs if s.use and s.axis is None and s is not slot), slot)
    if not constant and slot.axis is not None:
        return None  # the backend quantizes weights alone, and this one is computed
    axis = channel_axis(node, slot, value) if constant else None
    # A constant that shares parameters with activations has their merged range.
    role: Role = "weight" if constant and row.share is None else "activation"
    definition = ops.of(node)
    return spec(
        draft, node, slot, value, role, axis, is_bias=definition is not None and definition.role(index) == "bias"
    )


def of_output(draft: PlanBuilder, node: ir.Node, slot: Slot, value: ir.Value, *, fused: bool) -> Decision:
    """Decision of `slot` for the output `value` of `node`; fixed parameters only without a `fused` activation."""
    found = spec(draft, node, slot, value, "activation", None)
    return fixed(draft, slot, found) if slot.fixed is not None and not fused else found


def spec(
    draft: PlanBuilder,
    node: ir.Node,
    slot: Slot,
    value: ir.Value | None,
    role: Role,
    axis: int | None,
    *,
    is_bias: bool = False,
) -> TensorSpec:
    """The spec of `value`, an input or output of `node` with that `slot`."""
    assert slot.use is not None
    kind = draft.backend.types[slot.use]
    changes = {k: v for k in ("dtype", "symmetric", "unsigned", "granularity") if (v := getattr(slot, k)) is not None}
    bits = 16 if kind.bits is None and kind.dtype in ("int16", "uint16") else kind.bits
    kind = kind.model_copy(update=changes)
    parameter = value is not None and _is_parameter(node, value)
    chosen = None if is_bias or parameter else draft.selection.bits(node)
    if chosen is not None:
        kind = kind.with_bits(chosen[0] if role == "weight" and has_weight(node) else chosen[1])
    elif node in draft.ends and draft.backend.first_last_bits:
        observer = {"observer": draft.backend.first_last_observer}
        kind = kind.with_bits(draft.backend.first_last_bits).model_copy(update=observer)
    elif bits is not None and slot.dtype is not None:
        kind = kind.with_bits(bits)
    rules = None if is_bias else node_rules.of_node(node, draft.selection.rules, value)
    if rules is not None:
        is_weight = parameter or (role == "weight" and has_weight(node))
        kind = (rules[0] if is_weight else rules[1]).apply(kind)
    if kind.unsigned and role == "activation" and value is not None and signs.is_non_negative(value):
        kind = kind.without_sign()
    return kind.spec(role, axis)


def fixed(draft: PlanBuilder, slot: Slot, wanted: TensorSpec) -> Fixed:
    """The prescribed parameters of `slot` on the grid of `wanted`."""
    given = slot.fixed
    assert given is not None
    assert slot.use is not None
    if given.range is not None:
        low, high = (np.asarray(v, np.float32) for v in given.range)
        kind = draft.backend.types[slot.use]
        bits = 1 if kind.scale == "pow2" or kind.scale_bits == 1 else None
        return Fixed(numerics.from_range(low, high, wanted.but(axis=None, block_size=None, scale_bits=bits)))
    zero_point = wanted.qtype.quant_min if given.zero_point == "qmin" else given.zero_point or 0
    qparams = QParams(np.asarray(given.scale, np.float32), np.asarray(zero_point), wanted.qtype)
    return Fixed(qparams, prescribed=True)


def _is_parameter(node: ir.Node, value: ir.Value) -> bool:
    """Check whether `value` is a stored parameter of `node`, as gamma of a normalization; its width is the table's alone.

    Qualcomm's LayerNorm reads gamma in 8 bits beside activations of 8 and of 16 bits, and runs on the CPU otherwise.
    """
    definition = ops.of(node)
    places = [i for i, v in enumerate(node.inputs) if v is value]
    return definition is not None and all(definition.role(i) == "parameter" for i in places) and bool(places)


def has_weight(node: ir.Node) -> bool:
    """Check whether `node` is a layer with weights: a constant operand of any other has the width of its activations."""
    definition = ops.of(node)
    return definition is not None and (definition.weight_axis is not None or definition.family == "recurrent")


def output_axis(node: ir.Node) -> int:
    """Output-channel axis of the weight of `node`."""
    definition = ops.of(node)
    axis = definition.weight_axis if definition is not None else None
    if axis == "gemm":
        return 0 if query.attribute(node, "transB", 0) else 1
    return axis or 0


def channel_axis(node: ir.Node, slot: Slot, value: ir.Value) -> int | None:
    """The axis of `value`, a weight of `node`, that has a scale for each index; None where one scale is for all."""
    size = query.rank(value)
    if slot.axis is None or not size:
        return None
    if slot.axis == "N":
        return output_axis(node) % size
    if slot.axis == "K":
        return 1 - output_axis(node) % size if size == 2 else None
    axis = slot.axis % size if -size <= slot.axis < size else None
    if node.op_type == "MatMul" and size != 2:
        return None  # a stack of weights: onnxruntime's kernels take one scale (microsoft/onnxruntime#25489)
    if node.op_type == "ConvTranspose" and query.attribute(node, "group", 1) != 1:
        return None
    return axis
