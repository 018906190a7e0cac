"""Operators that still compute in float in a module on codes."""

from __future__ import annotations

import operator
from typing import Any, cast

import torch
from torch import fx
from torch.nn import functional

from onnxqat.bridge.integer.find import MOVES
from onnxqat.bridge.integer.unit import Unit
from onnxqat.bridge.lowering import pooling, reduction, resize, shape
from onnxqat.bridge.module import OnnxModule
from onnxqat.bridge.quantizers.fake_quantize import FakeQuantize

_EXACT = (
    *MOVES,
    torch.cat,
    torch.stack,
    torch.relu,
    functional.relu,
    torch.clamp,
    torch.amax,
    torch.amin,
    torch.index_select,
    torch.tile,
    shape.expand_to,
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


def of(module: OnnxModule) -> list[str]:
    """Names of the tensors that are computed in float, from a tensor that is no constant.

    Left out: what units and quantizers give, data movement, and arithmetic on whole numbers such as shapes.
    """
    nodes = {node.name: node for node in module.graph.nodes}
    return [tensor for tensor, name in module.tensor_nodes.items() if name in nodes and _is_float(module, nodes[name])]


def _is_float(module: OnnxModule, node: fx.Node) -> bool:
    if node.op == "call_module":
        return not isinstance(module.get_submodule(str(node.target)), (Unit, FakeQuantize))
    if node.op != "call_function" or node.target in (*_EXACT, *_WHOLE):
        return False
    if node.target is resize.resample and "nearest" in cast("tuple[Any, ...]", node.args[4]):
        return False
    return any(
        source.op in ("call_module", "placeholder") or _is_float(module, source) for source in node.all_input_nodes
    )
