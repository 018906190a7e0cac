"""Types and shapes that onnx infers, read into a model.

onnx_ir has a pass for this, which makes a second model of the result and brings two dozen other passes with its import.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import onnx
import onnx_ir as ir
from onnx_ir import serde

from onnxqat.graph import microsoft_shapes, query, walk

LARGEST_READ = 1000  # bytes of a constant that inference may want to look at, such as the target of a Reshape


def infer(model: ir.Model) -> None:
    """Set the types and shapes that follow in the main graph and its subgraphs; what is known in full stays as it is.

    So do dimensions of outputs, which are the user's: a name is not replaced by the number that follows for it.
    Inference does not give up all of the graph for one node that onnx does not understand.
    """
    try:
        with microsoft_shapes.known_to_inference(model):
            inferred = onnx.shape_inference.infer_shapes(
                _light(model), check_type=False, strict_mode=False, data_prop=True
            )
    except Exception as error:  # onnx raises what it likes; without shapes the passes only know less
        logging.getLogger(__name__).debug("shape inference failed: %s", error)
        return
    _read(model.graph, inferred.graph)


def _light(model: ir.Model) -> onnx.ModelProto:
    """`model` with its large initializers as inputs, so that no weights are copied."""
    graph = model.graph
    large = {name: v for name, v in graph.initializers.items() if _is_large(v)}
    view = ir.GraphView(
        [*graph.inputs, *(v for v in large.values() if not v.is_graph_input())],
        graph.outputs,
        nodes=graph,
        initializers=[v for name, v in graph.initializers.items() if name not in large],
        name=graph.name,
    )
    proto = onnx.ModelProto(ir_version=model.ir_version)
    proto.opset_import.extend(onnx.helper.make_opsetid(*item) for item in model.opset_imports.items())
    proto.functions.extend(serde.serialize_function(function) for function in model.functions.values())
    serde.serialize_graph_into(proto.graph, view)  # type: ignore[arg-type]  # its protocol is stricter than its own class
    return proto


def _is_large(value: ir.Value) -> bool:
    data = value.const_value
    return data is not None and data.nbytes > LARGEST_READ and None not in (value.dtype, value.shape)


def _read(graph: ir.Graph, proto: onnx.GraphProto) -> None:
    known = {value.name: value for value in walk.values(graph)}
    for info in (*proto.value_info, *proto.output):
        value = known.get(info.name)
        if value is None or not info.HasField("type") or _is_known(value):
            continue
        kind, shape = (
            serde.deserialize_type_proto_for_type(info.type),
            serde.deserialize_type_proto_for_shape(info.type),
        )
        if kind is not None and value.type != kind:
            value.type = kind
        if shape is not None and value.shape != shape and not (value.shape is not None and _leaves(value)):
            value.shape = shape
    for node, written in zip(graph, proto.node, strict=True):
        for body, inner in zip(walk.subgraphs(node), _bodies(written), strict=False):
            _read(body, inner)


def _leaves(value: ir.Value) -> bool:
    return value.is_graph_output() and walk.holder(value.graph) is None


def _is_known(value: ir.Value) -> bool:
    return value.dtype is not None and query.static_shape(value) is not None


def _bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs
