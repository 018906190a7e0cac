"""Corrections of types and shapes that a file states, where its data or the ONNX specification say otherwise."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from onnxqat.graph import walk


def join(proto: onnx.ModelProto) -> None:
    """Let an output that is an input have the input's type and shape, as in onnxruntime; `proto` is changed."""
    inputs = {value.name: value for value in proto.graph.input}
    for output in proto.graph.output:
        if output.name in inputs and output.type != inputs[output.name].type:
            output.type.CopyFrom(inputs[output.name].type)


def correct(model: ir.Model) -> ir.Model:
    """Let the tensors decide; `model` is changed and returned.

    1. An initializer has the element type and the shape of its data, whatever ``value_info`` says.
    2. The element type UNDEFINED states nothing: it is removed.
    3. A branch of If takes nothing: an input of it that is an initializer too, which onnxruntime accepts, is no input.
    """
    for node in walk.nodes(model):
        if node.op_type == "If" and not node.domain:
            for branch in walk.subgraphs(node):
                _drop_inputs_with_data(branch)
    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is None or value.is_graph_input():
                continue
            if value.dtype != tensor.dtype or value.shape != tensor.shape:
                value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
        for value in (*graph.inputs, *graph.outputs, *walk.outputs(graph)):
            if value.dtype is ir.DataType.UNDEFINED:
                value.type = None
    return model


def _drop_inputs_with_data(graph: ir.Graph) -> None:
    for value in list(graph.inputs):
        if value.name in graph.initializers:
            graph.inputs.remove(value)
