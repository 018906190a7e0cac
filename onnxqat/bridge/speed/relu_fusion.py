"""Relu and the quantizer behind it as one kernel, for training: a pass over memory less each way, and nothing else.

The quantizer's kernel reads what Relu would read, so that its result is neither written nor kept. Codes and gradients
are those of the two steps.
"""

from __future__ import annotations

import torch
from torch import fx, nn
from torch.nn import functional

from onnxqat.bridge.module import OnnxModule, view
from onnxqat.bridge.quantizers.fake_quantize import FakeQuantize

_RELU = (torch.relu, functional.relu)


def fuse_relu(module: nn.Module) -> nn.Module:
    """A view of `module` in which quantizers do the Relu in front of them, where nothing else reads what it gives.

    Parameters, buffers and submodules are those of `module`, which is not changed. Make the view when the module is on
    its device. Quantizers whose method has a kernel of its own keep their Relu, and so do subgraphs.

    Args:
        module: of :func:`onnxqat.to_torch`; any other is returned as it is, and so is one without such a Relu.
    """
    return view(module, _pairs, _fuse)


def _fuse(graph: fx.Graph, pair: tuple[fx.Node, fx.Node]) -> None:
    relu, node = pair
    node.args, node.kwargs = (relu.args[0],), {"relu": True}
    graph.erase_node(relu)


def _pairs(module: OnnxModule, graph: fx.Graph) -> list[tuple[fx.Node, fx.Node]]:
    """Relus with one user, a quantizer, and the call of that quantizer."""
    found = []
    for node in graph.nodes:
        if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
            continue
        quantizer, relu = module.get_submodule(str(node.target)), node.args[0]
        if isinstance(quantizer, FakeQuantize) and quantizer.fuses_relu() and _is_relu(relu) and len(relu.users) == 1:
            found.append((relu, node))
    return found


def _is_relu(node: object) -> bool:
    return (
        isinstance(node, fx.Node)
        and node.op == "call_function"
        and node.target in _RELU
        and len(node.args) == 1
        and not node.kwargs
    )
