"""Floats that are cast from integers, such as positions and numbers of rows, and the arithmetic on them."""

from __future__ import annotations

import onnx_ir as ir

from onnxqat.analysis import dataflow
from onnxqat.graph import query
from onnxqat.ops import operators as ops

REASON = "arithmetic on numbers that were cast from integers, which steps would make other numbers"
COUNTS = frozenset({ir.DataType.INT32, ir.DataType.INT64})  # 8 and 16 bits are samples: pixels, sound
ARITHMETIC = frozenset(
    {"Add", "Sub", "Mul", "Div", "Mod", "Pow", "Neg", "Abs", "Floor", "Ceil", "Round", "Sqrt", "Min", "Max", "Clip"}
    | {"Sum", "Mean", "Where", "Concat", "Cast", "CastLike", "Identity", "CumSum", "ReduceSum", "ReduceMean"}
)


def parts(graph: ir.Graph) -> frozenset[ir.Node]:
    """Nodes that compute from such numbers and constants alone.

    The 4096 places of a heat map, or 1000 steps of time, have no room among 256 codes: ``row = floor(index / width)``
    ends elsewhere. What joins such numbers with data is not in it, nor a function (Sin, Cos) of them.
    """
    numbers: set[ir.Value] = set()
    found: set[ir.Node] = set()
    for node in dataflow.in_order(graph):
        if _counts(node):
            numbers.update(node.outputs)
            found.add(node)
        elif _is_arithmetic(node):
            read = [v for i, v in enumerate(node.inputs) if v is not None and not _is_parameter(node, i)]
            computed = [v for v in read if query.constant_tensor(v) is None]
            floats = [v for v in computed if v.dtype in (None, *query.FLOATS)]
            if floats and all(v in numbers for v in floats):
                numbers.update(node.outputs)
                found.add(node)
    return frozenset(found)


def _counts(node: ir.Node) -> bool:
    """Check whether `node` converts computed integers to float."""
    source = node.inputs[0] if node.inputs else None
    if node.domain or node.op_type not in dataflow.CONVERSIONS or source is None:
        return False
    made = node.outputs[0].dtype
    return source.dtype in COUNTS and made in query.FLOATS and query.constant_tensor(source) is None


def _is_arithmetic(node: ir.Node) -> bool:
    row = ops.of(node)
    return row is not None and (node.op_type in ARITHMETIC or row.passthrough)


def _is_parameter(node: ir.Node, index: int) -> bool:
    row = ops.of(node)
    return row is not None and row.role(index) == "parameter" and node.op_type not in ("Where", "Clip")
