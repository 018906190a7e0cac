"""Average pools that RKNN-Toolkit2 takes only where their windows leave nothing of the map over."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxqat.deployment.workarounds import pair
from onnxqat.graph import build, query, walk
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log
from onnxqat.passes._inference import Inferred

LARGEST_KERNEL = 7
"""Larger windows are taken apart by the compiler; seen with 2.5.0: it loses the piece that it cuts off the map."""


class RknnAveragePools(Pass):
    """A Slice between Q/DQ cuts off the border that the windows of a large AveragePool skip.

    The function is the same.

    Left alone: pools with padding, dilation or ceil_mode, those whose windows reach the whole map, those that no
    DequantizeLinear feeds, and shapes that are not known.

    Tolerance: none. ::

        y = AveragePool<kernel_shape = [24, 5], strides = [24, 5]>(x)      # x: 1, 64, 25, 5
        c = Slice(x, [0, 0], [24, 5], [2, 3])   q = QuantizeLinear(c, s, z)   d = DequantizeLinear(q, s, z)
        y = AveragePool<kernel_shape = [24, 5], strides = [24, 5]>(d)
    """

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Cut in front of each pool; see the class."""
        log, inferred = Log(), Inferred(model)
        for scope, node in walk.nodes_to_edit(model):
            maker = pair.dequantize_of(node.inputs[0]) if node.op_type == "AveragePool" else None
            ends = None if maker is None else _reach(node, inferred.shape(node.inputs[0]))
            if maker is not None and ends is not None:
                _cut(scope, node, maker, ends, context.names)
                log.did("the border that no window of a pool reaches was cut off", node)
        return log.result()


def _reach(node: ir.Node, shape: tuple[int | None, ...] | None) -> list[int] | None:
    """End index (exclusive) of the area that the pooling windows cover, per spatial axis.

    None if they cover the whole input, or the pool is padded, dilated, ``ceil_mode`` or of kernels <= 7, or the shape
    is unknown.
    """
    if node.domain or query.takes_arguments(node):
        return None
    kernel = list(query.attribute(node, "kernel_shape", ()))
    sizes = [size for size in (shape or ())[2:] if size is not None]
    strides = list(query.attribute(node, "strides", [1] * len(kernel)))
    odd = any(query.attribute(node, "pads", ())) or query.attribute(node, "ceil_mode", 0)
    odd = odd or {*query.attribute(node, "dilations", (1,))} != {1}
    odd = odd or query.attribute(node, "auto_pad", "NOTSET") != "NOTSET"
    if odd or max(kernel) <= LARGEST_KERNEL or len(sizes) != len(kernel) or not all(sizes):
        return None
    ends = [size - (size - window) % step for size, window, step in zip(sizes, kernel, strides, strict=True)]
    return None if ends == sizes else ends


def _cut(scope: walk.Scope, node: ir.Node, maker: ir.Node, ends: list[int], names: build.Names) -> None:
    """Put Slice, Q and DQ in front of `node`, which then reads their result."""
    name = names.fresh(f"{node.name or node.outputs[0].name}_reach")
    numbers = {"starts": [0] * len(ends), "ends": ends, "axes": list(range(2, 2 + len(ends)))}
    parameters = [
        build.constant(scope, names.fresh(f"{name}_{key}"), np.array(value, np.int64), before=node)
        for key, value in numbers.items()
    ]
    source = node.inputs[0]
    assert source is not None
    shape = None if source.shape is None else ir.Shape([*list(source.shape)[:2], *ends])
    cut = build.node("Slice", [source, *parameters], [name], dtype=source.dtype, shape=shape, name=name)
    scope.insert_before(node, cut)
    node.replace_input_with(0, pair.insert(scope, node, cut.outputs[0], maker, names, name))
