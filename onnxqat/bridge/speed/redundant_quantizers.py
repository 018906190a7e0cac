"""Quantizers that find every value on their grid already, left out for training: a pass over memory less each way.

Backends want a pair behind Slice, Reshape or MaxPool with the scale of the pair in front. What such a node moves are
values of that grid, and a quantizer gives its own values back.
"""

from __future__ import annotations

import operator

import torch
from torch import fx, nn

from onnxqat.bridge.module import OnnxModule, view
from onnxqat.bridge.quantizers.fake_quantize import FakeQuantize

_MOVING = frozenset(
    {
        *(
            operator.getitem,
            torch.reshape,
            torch.permute,
            torch.transpose,
            torch.flatten,
            torch.squeeze,
            torch.unsqueeze,
        ),
        *(torch.max_pool1d, torch.max_pool2d, torch.max_pool3d),
    }
)
"""Functions that give elements of their first argument and nothing else."""


def skip_repeated(module: nn.Module) -> nn.Module:
    """A view of `module` without quantizers that repeat the one in front of them.

    Outputs keep their bits. So do gradients, but for what rounding left of a repeated quantizer's own share in that of
    the common scale. Parameters, buffers and submodules are those of `module`, which is not changed. Subgraphs keep
    their quantizers, and so do those whose method has a kernel of its own.

    Args:
        module: of :func:`onnxqat.to_torch`; any other is returned as it is, and so is one without such a quantizer.
    """
    return view(module, _repeated, _skip)


def _skip(graph: fx.Graph, node: fx.Node) -> None:
    (moved,) = node.all_input_nodes
    node.replace_all_uses_with(moved)
    graph.erase_node(node)


def _repeated(module: OnnxModule, graph: fx.Graph) -> list[fx.Node]:
    """Calls of quantizers whose argument comes, moved, from one with the same grid."""
    found = []
    for node in graph.nodes:
        quantizer = _quantizer(module, node)
        source = node.args[0] if quantizer is not None else None
        while isinstance(source, fx.Node) and source.op == "call_function" and source.target in _MOVING:
            source = source.args[0]
        first = _quantizer(module, source)
        if quantizer is not None and first is not None and _same_grid(first, quantizer):
            found.append(node)
    return found


def _quantizer(module: OnnxModule, node: object) -> FakeQuantize | None:
    if not isinstance(node, fx.Node) or node.op != "call_module" or len(node.args) != 1 or node.kwargs:
        return None
    called = module.get_submodule(str(node.target))
    return called if isinstance(called, FakeQuantize) and called.fuses_relu() else None


def _same_grid(first: FakeQuantize, other: FakeQuantize) -> bool:
    """Check whether both share one scale per tensor, and the grid."""
    limits = (first.quant_min, first.quant_max, first.axis) == (other.quant_min, other.quant_max, None)
    return limits and first.scale is other.scale and torch.equal(first.zero_point, other.zero_point)
