"""Types and shapes that onnx infers, read into a model.

onnx_ir has a pass for this, which makes a second model of the result and brings two dozen other passes with its import.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import onnx
import onnx_ir as ir
from onnx_ir import serde

from onnxqat.graph import inference, microsoft_shapes, propagation, query, walk

LARGEST_READ = 1000  # bytes of a constant that inference may want to look at, such as the target of a Reshape


def infer(model: ir.Model, *, outputs: bool = False) -> None:
    """Infer types and shapes in the main graph and its subgraphs; those that are known in full stay unchanged.

    So do dimensions of outputs, which are the user's: a name is not replaced by the number that follows for it. With
    `outputs` it is. Inference does not give up all of the graph for one node that onnx does not understand.
    """
    inferred = _inferred(model, _light(model))
    if inferred is not None:
        _read(model.graph, inferred.graph, outputs=outputs)


def mend(model: ir.Model) -> tuple[str, ...]:
    """Replace what contradicts the shapes that follow when none are stated but those of inputs and outputs.

    For a model as it was given, once: it costs an inference where the file states shapes.

    Returns:
        Names of inner tensors, outputs of subgraphs included, whose stated shape contradicted what follows, and was
        replaced. Such shapes are left behind by tools that edit a graph, or only the batch dimension of its inputs.
        Runtimes do not go by them: a constant that is computed from one is wrong, and onnxruntime refuses pairs that
        state it.
    """
    results = {id(v) for v in model.graph.outputs}
    stated = {id(v) for v in walk.outputs(walk.nodes(model)) if v.shape is not None and id(v) not in results}
    if not stated:
        return ()
    proto = _light(model)
    for graph in propagation.graphs(proto.graph):
        del graph.value_info[:]
        if graph is not proto.graph:
            for result in graph.output:
                if result.type.HasField("tensor_type"):  # else reading it would make a sequence a tensor
                    result.type.tensor_type.ClearField("shape")
    inferred = _inferred(model, proto)
    if inferred is None:
        return ()
    symbols = {str(d) for v in model.graph.inputs for d in v.shape or () if not isinstance(d, int)}
    replaced = []
    for value, info in _matched(model.graph, inferred.graph):
        follows = serde.deserialize_type_proto_for_shape(info.type)
        if id(value) in stated and follows is not None and _contradicts(value.shape, follows, symbols):
            value.shape = follows
            replaced.append(str(value.name))
    return tuple(replaced)


def _contradicts(stated: ir.Shape | None, follows: ir.Shape, symbols: set[str]) -> bool:
    """Check whether two shapes contradict; a number where an input has a symbolic dimension does, too."""
    if stated is None:
        return False
    if len(stated) != len(follows):
        return True
    return any(
        isinstance(there, int) and there != here and (isinstance(here, int) or str(here) in symbols)
        for there, here in zip(stated, follows, strict=True)
    )


def _inferred(model: ir.Model, proto: onnx.ModelProto) -> onnx.ModelProto | None:
    try:
        with microsoft_shapes.known_to_inference(model):
            safe = propagation.is_safe(proto)
            return inference.infer_shapes(proto, check_type=False, strict_mode=False, data_prop=safe)
    except Exception as error:  # onnx raises what it likes; without shapes the passes only know less
        logging.getLogger(__name__).debug("shape inference failed: %s", error)
        return None


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


def _read(graph: ir.Graph, proto: onnx.GraphProto, *, outputs: bool) -> None:
    for value, info in _matched(graph, proto):
        if _is_known(value):
            continue
        kind, shape = (
            serde.deserialize_type_proto_for_type(info.type),
            serde.deserialize_type_proto_for_shape(info.type),
        )
        if kind is not None and value.type != kind:
            value.type = kind
        stays = value.shape is not None and not outputs and _leaves(value)
        if shape is not None and value.shape != shape and not stays:
            value.shape = shape


def _matched(graph: ir.Graph, proto: onnx.GraphProto) -> Iterator[tuple[ir.Value, onnx.ValueInfoProto]]:
    """Values of a graph and of its subgraphs, each with what inference says about it."""
    known = {value.name: value for value in walk.values(graph)}
    for info in (*proto.value_info, *proto.output):
        if info.name in known and info.HasField("type"):
            yield known[info.name], info
    for node, written in zip(graph, proto.node, strict=True):
        for body, inner in zip(walk.subgraphs(node), propagation.bodies(written), strict=False):
            yield from _matched(body, inner)


def _leaves(value: ir.Value) -> bool:
    return value.is_graph_output() and walk.holder(value.graph) is None


def _is_known(value: ir.Value) -> bool:
    return value.dtype is not None and query.static_shape(value) is not None
