"""Operators that still compute in float in a module on codes."""

from __future__ import annotations

import operator
from typing import Any, cast

import torch
from torch import fx
from torch.nn import functional

from onnxqat.bridge.functional import shape_math
from onnxqat.bridge.importing import values
from onnxqat.bridge.integer import conversion
from onnxqat.bridge.integer.find import MOVES
from onnxqat.bridge.integer.unit import Unit
from onnxqat.bridge.lowering import indexing, pooling, reduction, resize, shape
from onnxqat.bridge.module import OnnxModule
from onnxqat.bridge.quantizers.fake_quantize import FakeQuantize

_EXACT = (
    *MOVES,
    torch.relu,
    functional.relu,
    torch.clamp,
    torch.amax,
    torch.amin,
    torch.index_select,
    torch.select,
    torch.tile,
    torch.Tensor.to,
    indexing.compressed,
    indexing.equal_parts,
    indexing.gather_along,
    indexing.gather_each,
    indexing.gather_points,
    indexing.reversed_sequences,
    indexing.slice_axes,
    indexing.top_k_of,
    indexing.triangle,
    shape.expand_to,
    shape.pad_any,
    shape.pad_axes,
    shape.reshape_to,
    shape.flatten_at,
    shape.squeeze_ones,
    shape.unsqueeze_all,
    shape.depth_to_space_columns,
    shape.space_to_depth_columns,
    functional.pixel_shuffle,
    functional.pixel_unshuffle,
    reduction.reduced_maximum,
    reduction.reduced_minimum,
    pooling.maximum_of_space,
    getattr,
)
"""Functions of codes whose results are codes of the same grid, or ends of it."""

_WHOLE = (operator.floordiv, operator.mod, torch.argmax, torch.gather, torch.take)


_SIZES = (shape.shape_as_tensor, shape.number_of_elements, getattr)
"""Functions that ask a tensor for its sizes, and for none of its numbers."""


def of(module: OnnxModule) -> list[str]:
    """Names of the tensors that are computed in float, from a tensor that is no constant.

    Left out: what units and quantizers give, data movement, conversion of whole numbers, and arithmetic on whole
    numbers such as shapes.
    """
    carrying: set[fx.Node] = set()
    for node in module.graph.nodes:  # in graph order, sources first
        if _carries(node) and (not node.all_input_nodes or not carrying.isdisjoint(node.all_input_nodes)):
            carrying.add(node)
    nodes = {node.name: node for node in module.graph.nodes}
    return [
        tensor
        for tensor, name in module.tensor_nodes.items()
        if name in nodes and _is_float(module, nodes[name], carrying)
    ]


def _is_whole(node: fx.Node) -> bool:
    """Check whether `node` is known to be whole numbers or conditions."""
    kind = node.meta.get(values.DTYPE)
    return kind is not None and kind not in values.FLOATS


def _carries(node: fx.Node) -> bool:
    """Check whether the result of `node` depends on the numbers that it reads, and not on a shape or a constant alone."""
    if node.op == "call_function":
        return node.target not in _SIZES and getattr(node.target, "__module__", "") != shape_math.__name__
    return node.op in ("placeholder", "call_module")


def _is_float(module: OnnxModule, node: fx.Node, carrying: set[fx.Node]) -> bool:
    if node.op == "call_module":
        return not isinstance(module.get_submodule(str(node.target)), (Unit, FakeQuantize))
    if node not in carrying or node.op != "call_function" or node.target in (*_EXACT, *_WHOLE):
        return False
    if all(_is_whole(one) for one in (node, *node.all_input_nodes)):
        return False
    if conversion.moves(node):
        return False
    if node.target is functional.interpolate:
        return node.kwargs.get("mode") != "nearest"
    return not (node.target is resize.resample and "nearest" in cast("tuple[Any, ...]", node.args[4]))
