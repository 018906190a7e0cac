"""Element types of values that shape inference leaves open.

Inference says nothing where nodes of different versions of a domain are side by side, nor behind a node that onnx
refuses. The schemas of the operators say most of it all the same: which outputs have the type of which inputs.
"""

from __future__ import annotations

import functools

import onnx.defs
import onnx_ir as ir

from onnxqat.graph import query, walk

# Operators whose first output has the type that an attribute states.
STATED_BY = {
    "Cast": "to",
    "BitCast": "to",
    "EyeLike": "dtype",
    "RandomUniformLike": "dtype",
    "RandomNormalLike": "dtype",
    "QuantizeLinear": "output_dtype",
    "DequantizeLinear": "output_dtype",
}
TENSOR_TYPES = {f"tensor({dtype.name.lower()})": dtype for dtype in ir.DataType}


def complete(model: ir.Model) -> None:
    """State the element type of each node's outputs that has none and follows; the model is changed."""
    pending = [node for node in walk.nodes(model) if any(_is_open(v) for v in node.outputs)]
    while pending:
        left = [node for node in pending if not _state(model, node)]
        if len(left) == len(pending):
            return
        pending = left


def _is_open(value: ir.Value) -> bool:
    return value.dtype is None and (value.type is None or isinstance(value.type, ir.TensorType))


def _state(model: ir.Model, node: ir.Node) -> bool:
    """Type the outputs of one node; whether none is open any more."""
    for index, output in enumerate(node.outputs):
        kind = _output_type(model, node, index) if _is_open(output) else None
        if kind is not None:
            output.type = ir.TensorType(kind)
    return not any(_is_open(v) for v in node.outputs)


def _output_type(model: ir.Model, node: ir.Node, index: int) -> ir.DataType | None:
    stated = query.attribute(node, STATED_BY.get(node.op_type, ""), 0) if not node.domain and not index else 0
    if stated:
        return ir.DataType(int(stated))
    results = [graph.outputs for graph in walk.subgraphs(node)]
    if results:  # a Loop's body starts with its condition
        place = index + (node.op_type == "Loop")
        return next((r[place].dtype for r in results if place < len(r) and r[place].dtype is not None), None)
    schema = _schema(node.op_type, node.version or query.opset(model, None, node.domain), node.domain)
    if schema is None or not schema.outputs:
        return None
    variable = schema.outputs[min(index, len(schema.outputs) - 1)].type_str
    for position, value in enumerate(node.inputs):
        formal = schema.inputs[min(position, len(schema.inputs) - 1)]
        if value is not None and formal.type_str == variable and value.dtype is not None:
            return value.dtype if isinstance(value.type, ir.TensorType) else None
    return _only_type(schema, variable)


@functools.cache
def _schema(operator: str, version: int, domain: str) -> onnx.defs.OpSchema | None:
    try:
        return onnx.defs.get_schema(operator, version, domain)
    except onnx.defs.SchemaError:
        return None


def _only_type(schema: onnx.defs.OpSchema, variable: str) -> ir.DataType | None:
    """The type of a formal parameter that may have one type only."""
    allowed = [c.allowed_type_strs for c in schema.type_constraints if c.type_param_str == variable]
    names = list(allowed[0]) if allowed else [variable]
    return TENSOR_TYPES.get(names[0]) if len(names) == 1 else None
