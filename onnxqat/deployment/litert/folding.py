"""Sizes that a model computes from static shapes, as constants; shapes behind them are known then."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from onnxqat.deployment.litert.graph import constant_array
from onnxqat.deployment.litert.model import Array
from onnxqat.graph import inference

_FOLDED = (
    *("Shape", "Gather", "Unsqueeze", "Squeeze", "Concat", "Slice", "Cast", "Reshape", "Transpose", "Identity"),
    *("Add", "Sub", "Mul", "Div", "Neg", "Sqrt", "Reciprocal", "Floor", "Ceil", "Max", "Min"),
    *("Equal", "Where", "Range", "ConstantOfShape"),
)
"""Operators that are computed here where all of their inputs are constant: those of sizes."""
_MOST = 1 << 28
"""Elements of the largest constant that is computed here: 1 GB of float32, of the 2 GB that a .tflite file may have."""
_ROUNDS = 8
"""Shapes that hang on sizes that hang on shapes; no exporter was seen that goes deeper than three."""


def folded(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of `model` with constants in place of what is computed from constants and shapes, and shapes inferred."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    constants = {item.name: numpy_helper.to_array(item) for item in result.graph.initializer}
    for _ in range(_ROUNDS):
        result = inference.infer_shapes(result, data_prop=True)
        if not _fold(result, constants):
            break
    return result


def _fold(model: onnx.ModelProto, constants: dict[str, Array]) -> bool:
    """Fold what can be in one go; whether there was anything."""
    graph = model.graph
    values = (*graph.value_info, *graph.input, *graph.output)
    shapes = {v.name: v.type.tensor_type.shape for v in values if v.type.tensor_type.HasField("shape")}
    outputs = {value.name for value in graph.output}
    kept: list[onnx.NodeProto] = []
    for node in graph.node:
        result = None if outputs.intersection(node.output) else _computed(node, model, constants, shapes)
        if result is None:
            kept.append(node)
            continue
        constants[node.output[0]] = result
        graph.initializer.append(numpy_helper.from_array(result, node.output[0]))
    changed = len(kept) < len(graph.node)
    del graph.node[:]
    graph.node.extend(kept)
    return changed


def _computed(
    node: onnx.NodeProto,
    model: onnx.ModelProto,
    constants: dict[str, Array],
    shapes: dict[str, onnx.TensorShapeProto],
) -> Array | None:
    """The result of `node`, None where that is not known."""
    if node.op_type == "Constant":
        return constant_array(node)
    if node.op_type not in _FOLDED or node.domain not in ("", "ai.onnx"):
        return None
    names = [name for name in node.input if name]
    if node.op_type == "Shape":
        sizes = _sizes(names[0], constants, shapes)
        if sizes is None:
            return None
        feeds: dict[str, Array] = {names[0]: np.broadcast_to(np.float32(0), sizes)}
    elif all(name in constants for name in names):
        feeds = {name: constants[name] for name in names}
    else:
        return None
    if node.op_type == "ConstantOfShape" and np.prod(feeds[names[0]], dtype=np.float64) > _MOST:
        return None
    graph = onnx.helper.make_graph([node], "constant", [_untyped(n) for n in names], [_untyped(node.output[0])])
    opsets = [o for o in model.opset_import if o.domain in ("", "ai.onnx")]
    alone = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=model.ir_version)
    results: Any = ReferenceEvaluator(alone).run(None, feeds)
    return np.asarray(results[0])


def _sizes(name: str, constants: dict[str, Array], shapes: dict[str, onnx.TensorShapeProto]) -> tuple[int, ...] | None:
    """The shape of a tensor, None where any of it is not known."""
    if name in constants:
        return tuple(constants[name].shape)
    shape = shapes.get(name)
    if shape is None or not all(d.HasField("dim_value") for d in shape.dim):
        return None
    return tuple(d.dim_value for d in shape.dim)


def _untyped(name: str) -> onnx.ValueInfoProto:
    return onnx.ValueInfoProto(name=name)
