"""The lowest ai.onnx opset and IR version that can express a model."""

from __future__ import annotations

from collections.abc import Iterable

import onnx
import onnx_ir as ir

from onnxqat.graph import query, walk
from onnxqat.passes.raise_opset import OLDEST, ir_version_of
from onnxqat.types import Remark

PER_CHANNEL = 13
WIDE = 21
TWO_BITS = 25
ADDED_TYPES = 21  # from here on, a new version of an operator mostly adds types of 2, 4, 8 or 16 bits

FIRST_OPSET = {
    **dict.fromkeys((ir.DataType.INT16, ir.DataType.UINT16, ir.DataType.INT4, ir.DataType.UINT4), WIDE),
    **dict.fromkeys((ir.DataType.INT2, ir.DataType.UINT2), TWO_BITS),
    **dict.fromkeys((ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT32), 10),
}
FIRST_IR = {
    **dict.fromkeys((ir.DataType.INT4, ir.DataType.UINT4), 10),
    **dict.fromkeys((ir.DataType.INT2, ir.DataType.UINT2), 13),
}
LOWEST_IR = 4
FUNCTIONS_IR = 8


def lowest_opset(model: ir.Model) -> int:
    """Lowest opset at which every node means what it means now.

    That is the version that its schema has, or where versions from 21 on only added types, as most did, the one before
    them, for a node of older types. QuantizeLinear and DequantizeLinear are judged by their contents instead, since each newer version only added
    types and attributes: 8 bits with one scale need 10, a scale per channel 13, 4 and 16 bits 21, 2 bits 25.
    """
    current = query.opset(model)
    return max((_node_opset(node, current) for node in _nodes(model)), default=current)


def too_new(model: ir.Model, backend: str, highest: int) -> list[Remark]:
    """A remark where nodes mean what they mean only in opsets above `highest`, the last that `backend` reads."""
    current = query.opset(model)
    found = tuple(query.label(n) for n in _nodes(model) if current > highest and _node_opset(n, current) > highest)
    return [Remark(f"{backend} reads opsets up to {highest}, which lack these", found, "insert")] if found else []


def lowest_ir_version(model: ir.Model, opset: int) -> int:
    """Lowest IR version for `opset` and the tensor types of the model; the present one where something else needs it."""
    if model.device_configurations:
        return model.ir_version
    types = [v.dtype for scope in walk.scopes(model) for v in walk.values(scope)]
    needed = [LOWEST_IR, ir_version_of(opset), *(FIRST_IR.get(t, LOWEST_IR) for t in types if t is not None)]
    if model.functions:
        needed.append(FUNCTIONS_IR)
    return min(model.ir_version, max(needed))


def lower(model: ir.Model) -> bool:
    """Set both to the lowest; never raises one. A model with functions keeps its opset, which they import too."""
    opset = query.opset(model)
    # a LeakyRelu in float alone is of opset 6, from which no step behind this one can raise it again
    target = opset if model.functions else min(opset, max(OLDEST, lowest_opset(model)))
    version = lowest_ir_version(model, target)
    changed = (target, version) != (opset, model.ir_version)
    model.opset_imports["" if "" in model.opset_imports else "ai.onnx"] = target
    model.ir_version = version
    return changed


def _nodes(model: ir.Model) -> Iterable[ir.Node]:
    return (n for n in walk.nodes(model) if n.domain in ("", "ai.onnx"))


def _node_opset(node: ir.Node, current: int) -> int:
    if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
        return _qdq_opset(node, current)
    try:
        schema = onnx.defs.get_schema(node.op_type, current, "")
        while schema.since_version >= ADDED_TYPES:
            older = onnx.defs.get_schema(node.op_type, schema.since_version - 1, "")
            if _signature(older) != _signature(schema) or not _takes(older, node):
                break
            schema = older
        return int(schema.since_version)
    except onnx.defs.SchemaError:
        return current


def _signature(schema: onnx.defs.OpSchema) -> tuple[object, ...]:
    """Attributes and input/output options of a schema version, without types and descriptions."""
    attributes = {
        name: (str(a.type), a.required, a.default_value.SerializeToString()) for name, a in schema.attributes.items()
    }
    return attributes, [[str(v.option) for v in side] for side in (schema.inputs, schema.outputs)]


def _takes(schema: onnx.defs.OpSchema, node: ir.Node) -> bool:
    """Check whether `schema` accepts the types of `node`; False for ceil_mode, of which only the words changed."""
    if query.attribute(node, "ceil_mode", 0):
        return False
    for formal, values in ((schema.inputs, node.inputs), (schema.outputs, node.outputs)):
        for index, value in enumerate(values):
            if value is None:
                continue
            if (
                value.dtype is None
                or f"tensor({value.dtype.name.lower()})" not in formal[min(index, len(formal) - 1)].types
            ):
                return False
    return True


def _qdq_opset(node: ir.Node, current: int) -> int:
    codes = node.outputs[0] if node.op_type == "QuantizeLinear" else node.inputs[0]
    zero_point = node.inputs[2] if len(node.inputs) > 2 else None
    typed = codes if zero_point is None else zero_point
    dtype = None if typed is None else typed.dtype
    scale = query.constant_tensor(node.inputs[1])
    plain = set(node.attributes) <= {"axis"} and scale is not None and scale.dtype == ir.DataType.FLOAT
    if dtype not in FIRST_OPSET or not plain or scale is None:
        return current
    per_channel = len(scale.shape) > 0 and scale.size > 1
    return max(FIRST_OPSET[dtype], PER_CHANNEL if per_channel or "axis" in node.attributes else 0)
