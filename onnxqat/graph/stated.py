"""Types and shapes that a file states of its tensors, where its data or the ONNX specification say otherwise."""

from __future__ import annotations

import onnx_ir as ir


def correct(model: ir.Model) -> ir.Model:
    """Let the tensors decide; `model` is changed and returned.

    1. An initializer has the element type and the shape of its data, whatever ``value_info`` says.
    2. The element type UNDEFINED states nothing: it is removed.
    """
    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is None or value.is_graph_input():
                continue
            if value.dtype != tensor.dtype or value.shape != tensor.shape:
                value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
        for value in (*graph.inputs, *graph.outputs, *(v for node in graph for v in node.outputs)):
            if value.dtype is ir.DataType.UNDEFINED:
                value.type = None
    return model
