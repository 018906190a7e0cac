"""Average pools that RKNN-Toolkit2 takes only where their windows leave nothing of the map over."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.shape_inference
from onnx import helper, numpy_helper

from onnxqat.graph.qdq import DEQUANTIZE, QUANTIZE

LARGEST_KERNEL = 7
"""Larger windows are taken apart by the compiler; seen with 2.5.0: it loses the piece that it cuts off the map."""


def with_cut_pools(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy in which a Slice between Q/DQ cuts off the border that the windows of a large AveragePool skip.

    The function is the same. Left alone: pools with padding, dilation or ceil_mode, those whose windows reach the whole
    map, those that no DequantizeLinear feeds, and shapes that are not known. ::

        y = AveragePool<kernel_shape = [24, 5], strides = [24, 5]>(x)      # x: 1, 64, 25, 5
        c = Slice(x, [0, 0], [24, 5], [2, 3])   q = QuantizeLinear(c, s, z)   d = DequantizeLinear(q, s, z)
        y = AveragePool<kernel_shape = [24, 5], strides = [24, 5]>(d)

    Args:
        model: deploy form with static shapes, opset 13 or later; it is not changed.
    """
    made = onnx.ModelProto()
    made.CopyFrom(model)
    shapes = {
        v.name: [d.dim_value for d in v.type.tensor_type.shape.dim]
        for v in onnx.shape_inference.infer_shapes(model).graph.value_info
    }
    makers = {output: node for node in made.graph.node for output in node.output}
    nodes: list[onnx.NodeProto] = []
    for node in made.graph.node:
        maker = makers.get(node.input[0]) if node.op_type == "AveragePool" else None
        reach = _reach(node, shapes.get(node.input[0], [])) if maker is not None else None
        if maker is not None and maker.op_type == DEQUANTIZE and reach is not None:
            nodes += _cut(node, maker, reach, made.graph)
        nodes.append(node)
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    return made


def _reach(node: onnx.NodeProto, shape: list[int]) -> list[int] | None:
    """End index (exclusive) of the area that the pooling windows cover, per spatial axis.

    None if they cover the whole input, or the pool is padded, dilated, ``ceil_mode`` or of kernels <= 7, or the shape
    is unknown.
    """
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    kernel = list(attributes["kernel_shape"])
    sizes = shape[2:]
    strides = list(attributes.get("strides", [1] * len(kernel)))
    odd = any(attributes.get("pads", [])) or attributes.get("ceil_mode", 0)
    odd = odd or set(attributes.get("dilations", [1])) != {1} or attributes.get("auto_pad", b"NOTSET") != b"NOTSET"
    if odd or max(kernel) <= LARGEST_KERNEL or len(sizes) != len(kernel) or not all(sizes):
        return None
    ends = [size - (size - window) % step for size, window, step in zip(sizes, kernel, strides, strict=True)]
    return None if ends == sizes else ends


def _cut(node: onnx.NodeProto, maker: onnx.NodeProto, ends: list[int], graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Slice, Q and DQ in front of `node`, which then reads their result."""
    name = f"{node.name or node.output[0]}_reach"
    numbers = {"starts": [0] * len(ends), "ends": ends, "axes": list(range(2, 2 + len(ends)))}
    for key, value in numbers.items():
        graph.initializer.append(numpy_helper.from_array(np.array(value, np.int64), f"{name}_{key}"))
    source = node.input[0]
    node.input[0] = f"{name}_dequantized"
    parameters = list(maker.input[1:])
    return [
        helper.make_node("Slice", [source, *(f"{name}_{key}" for key in numbers)], [name], name=name),
        helper.make_node(QUANTIZE, [name, *parameters], [f"{name}_quantized"], name=f"{name}_Q"),
        helper.make_node(DEQUANTIZE, [f"{name}_quantized", *parameters], [node.input[0]], name=f"{name}_DQ"),
    ]
