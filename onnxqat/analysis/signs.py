"""Tensors that cannot be negative, as far as the graph alone shows."""

from __future__ import annotations

import onnx_ir as ir

from onnxqat.graph import query
from onnxqat.ops import operators as ops

NEVER_NEGATIVE = frozenset(
    {
        "Relu",
        "Sigmoid",
        "Softmax",
        "HardSigmoid",
        "Abs",
        "Sqrt",
        "Exp",
        "Softplus",
        "ReduceL1",
        "ReduceL2",
        "ReduceSumSquare",
    }
)
KEEP_THE_SIGN = frozenset(
    {
        "Add",
        "Mul",
        "Concat",
        "MaxPool",
        "AveragePool",
        "GlobalAveragePool",
        "GlobalMaxPool",
        "ReduceMean",
        "ReduceMax",
        "ReduceSum",
    }
)
MOVES = 64  # data movement is followed no further than this


def is_non_negative(value: ir.Value, depth: int = MOVES) -> bool:
    """Check whether every element of `value` is at least 0 for all inputs of the model."""
    constant = query.constant_array(value)
    if constant is not None:
        return constant.dtype.kind == "f" and bool(constant.size) and bool((constant >= 0).all())
    node = value.producer()
    if node is None or node.domain or depth == 0:
        return False
    if node.op_type in NEVER_NEGATIVE:
        return True
    row = ops.of(node)
    if row is not None and row.output_range is not None:
        return row.output_range[0] >= 0
    if node.op_type == "Clip":
        low = query.constant_array(node.inputs[1]) if len(node.inputs) > 1 else query.attribute(node, "min", None)
        return low is not None and bool(low >= 0)
    if is_square(node):
        return True
    if node.op_type in KEEP_THE_SIGN:
        summed = node.inputs[:1] if node.op_type.startswith("Reduce") else node.inputs  # axes may be an input
        return all(v is not None and is_non_negative(v, depth - 1) for v in summed)
    if node.op_type == "Pad":
        fill = query.input_at(node, 2)
        filled = is_non_negative(fill, depth - 1) if fill is not None else query.attribute(node, "value", 0.0) >= 0
        return filled and node.inputs[0] is not None and is_non_negative(node.inputs[0], depth - 1)
    if row is not None and row.passthrough and node.inputs:
        source = node.inputs[0]
        return source is not None and is_non_negative(source, depth - 1)
    return False


def is_square(node: ir.Node) -> bool:
    """Check whether `node` computes squares or other even powers of its input."""
    if node.domain or len(node.inputs) != 2:
        return False
    exponent = query.constant_array(node.inputs[1]) if node.op_type == "Pow" else None
    even = exponent is not None and bool((exponent % 2 == 0).all())
    return even or (node.op_type == "Mul" and node.inputs[0] is node.inputs[1])
