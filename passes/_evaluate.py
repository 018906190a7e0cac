"""Single nodes on constant inputs, for constant subexpressions."""

from __future__ import annotations

import math

import numpy as np
import onnx
import onnx_ir as ir

from onnxqat.graph import query

SHAPES = frozenset({"Identity", "Unsqueeze", "Squeeze", "Transpose", "Reshape", "Flatten", "Slice", "Shape"})
BROADCASTS = frozenset({"Add", "Sub", "Mul", "Div", "Neg", "Sqrt", "Reciprocal"})
FOLDABLE = SHAPES | BROADCASTS | {"Cast", "Concat", "Gather", "ConstantOfShape", "Expand"}


def is_foldable(node: ir.Node) -> bool:
    """Whether `node` is an operator that :func:`evaluate` knows and has one output and no formal attributes."""
    return (
        node.domain == ""
        and node.op_type in FOLDABLE
        and len(node.outputs) == 1
        and not any(a.is_ref() for a in node.attributes.values())
    )


def result_elements(node: ir.Node, inputs: list[np.ndarray | None]) -> int:
    """Upper bound of the number of elements of the result, known before anything is computed."""
    arrays = [a for a in inputs if a is not None]
    if node.op_type == "ConstantOfShape":
        return _product(arrays[0])
    if node.op_type == "Expand":
        return _product(arrays[1]) * max(1, arrays[0].size)
    if node.op_type == "Gather":
        axis = int(query.attribute(node, "axis", 0))
        return int(arrays[0].size // max(1, arrays[0].shape[axis]) * arrays[1].size)
    if node.op_type in BROADCASTS:
        return math.prod(np.broadcast_shapes(*(a.shape for a in arrays)))
    return sum(a.size for a in arrays)


def _product(dims: np.ndarray) -> int:
    return math.prod(max(0, int(d)) for d in dims.reshape(-1))


def evaluate(node: ir.Node, inputs: list[np.ndarray | None], opset: int) -> np.ndarray:
    """The result of a foldable `node`; float16 and float32 arithmetic is rounded as a runtime rounds it."""
    if node.op_type == "ConstantOfShape":
        fill = query.attribute(node, "value", None)
        value = np.zeros(1, np.float32) if fill is None else fill.numpy()
        shape = inputs[0]
        assert shape is not None
        return np.full([int(d) for d in shape.reshape(-1)], value.reshape(-1)[0], value.dtype)
    from onnx.reference import ReferenceEvaluator

    feeds = {f"i{i}": a for i, a in enumerate(inputs) if a is not None}
    names = [f"i{i}" if a is not None else "" for i, a in enumerate(inputs)]
    proto = onnx.helper.make_node(node.op_type, names, ["y"])
    proto.attribute.extend(ir.to_proto(attribute) for attribute in node.attributes.values())
    graph = onnx.helper.make_graph(
        [proto],
        "one",
        [onnx.helper.make_tensor_value_info(n, ir.DataType.from_numpy(a.dtype), a.shape) for n, a in feeds.items()],
        [onnx.helper.make_tensor_value_info("y", 0, None)],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    return np.asarray(ReferenceEvaluator(model).run(None, feeds)[0])  # type: ignore[index]
