"""Relu and the quantizer behind it as one kernel, for training: a pass over memory less each way, and nothing else.

The quantizer's kernel reads what Relu would read, so that its result is neither written nor kept. Codes and gradients
are those of the two steps.
"""

from __future__ import annotations

import torch
from torch import fx, nn
from torch.nn import functional

from onnxqat.bridge.fake_quantize import FakeQuantize

_RELU = (torch.relu, functional.relu)


def fuse_relu(module: nn.Module) -> int:
    """Let quantizers take over the Relu in front of them, where nothing else reads what it gives; in place.

    The tensor of such a Relu is gone from the graph: keep what looks at it (named outputs, feature losses) in the
    graph before. Quantizers whose method has a kernel of its own are left alone; so are graphs below
    the top, and calls with a quantizer that is called elsewhere.

    Args:
        module: what :func:`onnxqat.to_torch` returned; anything else is left as it is.

    Returns:
        The number of Relus that were taken over.
    """
    if not isinstance(module, fx.GraphModule):
        return 0
    calls: dict[str, list[fx.Node]] = {}
    for node in module.graph.nodes:
        if node.op == "call_module":
            calls.setdefault(str(node.target), []).append(node)
    found = 0
    for path, nodes in calls.items():
        quantizer = module.get_submodule(path)
        if len(nodes) == 1 and isinstance(quantizer, FakeQuantize) and quantizer.fuses_relu():
            found += _take_over(quantizer, nodes[0])
    if found:
        module.recompile()
    return found


def _take_over(quantizer: FakeQuantize, node: fx.Node) -> bool:
    relu = node.args[0]
    if not isinstance(relu, fx.Node) or relu.op != "call_function" or relu.target not in _RELU or len(relu.users) > 1:
        return False
    if len(relu.args) != 1 or relu.kwargs:
        return False
    node.replace_input_with(relu, relu.args[0])  # type: ignore[arg-type]
    node.graph.erase_node(relu)
    quantizer.of_relu = True
    return True
