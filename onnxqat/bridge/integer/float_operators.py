"""Operators that still compute in float in a module on codes."""

from __future__ import annotations

import operator
from collections.abc import Container, Iterator
from typing import Any, cast

import torch
from torch import fx
from torch.nn import functional

from onnxqat.bridge.functional import shape_math
from onnxqat.bridge.importing import values
from onnxqat.bridge.integer import conversion
from onnxqat.bridge.integer.find import MOVES
from onnxqat.bridge.integer.unit import Unit
from onnxqat.bridge.lowering import control_flow, indexing, pooling, reduction, resize, shape
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
    numbers such as shapes. Those in the bodies of If, Loop and Scan follow those around them.
    """
    return list(_names(module, frozenset()))


def _names(module: OnnxModule, constants: frozenset[str]) -> Iterator[str]:
    """Yield the names in the graph of `module`, whose arguments `constants` are the same for any input."""
    carrying: set[fx.Node] = set()
    for node in module.graph.nodes:  # in graph order, sources first
        read = not node.all_input_nodes or not carrying.isdisjoint(node.all_input_nodes)
        if read and _carries(node) and (node.op != "placeholder" or node.name not in constants):
            carrying.add(node)
    nodes = {node.name: node for node in module.graph.nodes}
    first: dict[str, str] = {}  # an Identity gives a second name to the node in front of it
    for tensor, name in module.tensor_nodes.items():
        first.setdefault(name, tensor)
    named: dict[fx.Node, str] = {}  # one of several results stands for its operator
    for name, tensor in first.items():
        if name in nodes:
            named.setdefault(_maker(nodes[name], first), tensor)
    yield from (tensor for node, tensor in named.items() if _is_float(module, node, carrying))
    bodies = module.bodies()
    for node in module.graph.nodes:
        for held, captured in control_flow.bodies_of(node):
            body = bodies[str(held.target)]
            arguments = [n.name for n in body.graph.nodes if n.op == "placeholder"][-len(captured) or None :]
            fixed = (name for name, source in zip(arguments, captured, strict=False) if source not in carrying)
            yield from _names(body, frozenset(fixed))


def _maker(node: fx.Node, named: Container[str]) -> fx.Node:
    """The function with several results that `node` is one of; `node` itself where it is an element of a tensor."""
    source = node.args[0] if node.target is operator.getitem else None
    return source if isinstance(source, fx.Node) and source.name not in named and not _runs_bodies(source) else node


def _runs_bodies(node: fx.Node) -> bool:
    return next(control_flow.bodies_of(node), None) is not None


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
