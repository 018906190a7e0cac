"""Shape inference of onnx on models of strangers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx

_ALIKE = frozenset({"GroupNormalization", "MeanVarianceNormalization"})
"""Operators about which onnx infers nothing, and whose result has the type and the shape of the first input."""


def infer_shapes(proto: onnx.ModelProto, **options: bool) -> onnx.ModelProto:
    """``onnx.shape_inference.infer_shapes``, for which a stated dimension below 0 is an unknown one, as in onnxruntime.

    Exporters write -1 for a dynamic dimension; inference that computes with one, as of a Slice, ends the process. Two
    normalizations, behind which onnx knows no type, are to inference what they are to types: the identity.

    Args:
        proto: it is not changed.
        options: ``check_type``, ``strict_mode``, ``data_prop``.

    Raises:
        onnx.shape_inference.InferenceError: what onnx raises.
    """
    alike = {place: node for place, node in enumerate(_nodes(proto)) if not node.domain and node.op_type in _ALIKE}
    if alike or any(dimension.dim_value < 0 for dimension in _dimensions(proto)):
        copy = onnx.ModelProto()
        copy.CopyFrom(proto)
        for dimension in _dimensions(copy):
            if dimension.dim_value < 0:
                dimension.ClearField("dim_value")
        for place, node in enumerate(_nodes(copy) if alike else ()):
            if place in alike:
                node.CopyFrom(onnx.helper.make_node("Identity", node.input[:1], node.output[:1]))
        found = onnx.shape_inference.infer_shapes(copy, **options)
        for place, node in enumerate(_nodes(found) if alike else ()):
            if place in alike:
                node.CopyFrom(alike[place])
        return found
    return onnx.shape_inference.infer_shapes(proto, **options)


def _nodes(proto: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """All nodes, those of subgraphs behind the one that holds them; not those of functions."""
    yield from _below(proto.graph.node)


def _below(nodes: Any) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for graph in _bodies(node):
            yield from _below(graph.node)


def _bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        yield from (attribute.g, *attribute.graphs) if attribute.HasField("g") else attribute.graphs


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
        for graph in _bodies(node):
            yield from _dimensions(graph)
