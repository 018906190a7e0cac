"""Limits of onnx's data propagation in shape inference, which writes out vectors of integers element by element.

One of 10**12 elements, which a Range, an Expand or an input can state in a few bytes, takes all memory and does not end.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from onnx import TensorProto, numpy_helper

from onnxqat.graph import inference, lengths

LARGEST = lengths.LONGEST
_UNBOUNDED = 2**62  # ends of a Slice that mean "to the end"
_WHOLE = (TensorProto.INT64, TensorProto.INT32)


def is_safe(proto: onnx.ModelProto) -> bool:
    """Check that no vector of integers gets longer than :data:`LARGEST`, by shape inference without propagation.

    Args:
        proto: with types and shapes of its inputs; weights may be left out.
    """
    try:
        lengths.check(proto)
    except lengths.TooLongError:
        return False
    if not any(LARGEST < number < _UNBOUNDED for number in _numbers(proto.graph)):
        return True
    inferred = inference.infer_shapes(proto, check_type=False, strict_mode=False, data_prop=False)
    return all(size <= LARGEST for size in _vectors(inferred.graph))


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """`graph` and the subgraphs in it, at every depth."""
    yield graph
    for node in graph.node:
        for body in bodies(node):
            yield from graphs(body)


def bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The subgraphs that `node` holds itself."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _numbers(graph: onnx.GraphProto) -> Iterator[int]:
    """Sizes that the file states: of dimensions, and in constants."""
    for one in graphs(graph):
        yield from _vectors(one)
        constants = [*one.initializer, *(a.t for n in one.node if n.op_type == "Constant" for a in n.attribute)]
        for constant in constants:
            if constant.data_type in _WHOLE and constant.data_location != TensorProto.EXTERNAL:
                yield from (int(v) for v in numpy_helper.to_array(constant).reshape(-1))
        for node in one.node:
            if node.op_type == "Constant":
                yield from (v for a in node.attribute for v in (a.i, *a.ints))


def _vectors(graph: onnx.GraphProto) -> Iterator[int]:
    """Stated lengths of vectors of whole numbers."""
    for one in graphs(graph):
        for value in (*one.input, *one.output, *one.value_info):
            kind = value.type.tensor_type
            if kind.elem_type in _WHOLE and len(kind.shape.dim) == 1:
                yield kind.shape.dim[0].dim_value
