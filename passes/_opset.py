"""The lowest ai.onnx opset and IR version that say what a model says."""

from __future__ import annotations

from collections.abc import Iterable

import onnx
import onnx_ir as ir

from onnxqat.graph import query, walk
from onnxqat.passes.raise_opset import ir_version_of

PER_CHANNEL = 13
WIDE = 21
TWO_BITS = 25

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
    """Lowest opset at which every node has the schema version that it has now.

    QuantizeLinear and DequantizeLinear are judged by their contents instead, since each newer version only added
    types and attributes: 8 bits with one scale need 10, a scale a channel 13, 4 and 16 bits 21, 2 bits 25.
    """
    current = query.opset(model)
    return max((_node_opset(node, current) for node in _nodes(model)), default=current)


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
    target = opset if model.functions else min(opset, lowest_opset(model))
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
        return int(onnx.defs.get_schema(node.op_type, current, "").since_version)
    except onnx.defs.SchemaError:
        return current


def _qdq_opset(node: ir.Node, current: int) -> int:
    codes = node.outputs[0] if node.op_type == "QuantizeLinear" else node.inputs[0]
    zero_point = node.inputs[2] if len(node.inputs) > 2 else None
    dtype = zero_point.dtype if zero_point is not None else codes.dtype if codes is not None else None
    scale = query.constant_tensor(node.inputs[1])
    plain = set(node.attributes) <= {"axis"} and scale is not None and scale.dtype == ir.DataType.FLOAT
    if dtype not in FIRST_OPSET or not plain or scale is None:
        return current
    per_channel = len(scale.shape) > 0 and scale.size > 1
    return max(FIRST_OPSET[dtype], PER_CHANNEL if per_channel or "axis" in node.attributes else 0)
