"""Shape inference of onnx on models of strangers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx


def infer_shapes(proto: onnx.ModelProto, **options: bool) -> onnx.ModelProto:
    """``onnx.shape_inference.infer_shapes``, for which a stated dimension below 0 is an unknown one, as in onnxruntime.

    Exporters write -1 for a dynamic dimension; inference that computes with one, as of a Slice, ends the process.

    Args:
        proto: it is not changed.
        options: ``check_type``, ``strict_mode``, ``data_prop``.

    Raises:
        onnx.shape_inference.InferenceError: what onnx raises.
    """
    if any(dimension.dim_value < 0 for dimension in _dimensions(proto)):
        copy = onnx.ModelProto()
        copy.CopyFrom(proto)
        for dimension in _dimensions(copy):
            if dimension.dim_value < 0:
                dimension.ClearField("dim_value")
        proto = copy
    return onnx.shape_inference.infer_shapes(proto, **options)


def _dimensions(message: Any) -> Iterator[onnx.TensorShapeProto.Dimension]:
    """All stated dimensions in `message`: of a model, a graph or a type."""
    if isinstance(message, onnx.ModelProto):
        yield from _dimensions(message.graph)
        for function in message.functions:
            yield from _of_values(function.value_info)
            yield from _of_nodes(function.node)
    elif isinstance(message, onnx.GraphProto):
        yield from _of_values((*message.input, *message.output, *message.value_info))
        yield from _of_nodes(message.node)
    else:
        name = message.WhichOneof("value")
        if name in ("tensor_type", "sparse_tensor_type"):
            yield from getattr(message, name).shape.dim
        elif name in ("sequence_type", "optional_type"):
            yield from _dimensions(getattr(message, name).elem_type)
        elif name == "map_type":
            yield from _dimensions(message.map_type.value_type)


def _of_values(values: Any) -> Iterator[onnx.TensorShapeProto.Dimension]:
    for value in values:
        yield from _dimensions(value.type)


def _of_nodes(nodes: Any) -> Iterator[onnx.TensorShapeProto.Dimension]:
    for node in nodes:
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs) if attribute.HasField("g") else attribute.graphs:
                yield from _dimensions(graph)
