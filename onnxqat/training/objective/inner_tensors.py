"""Views of a module that return inner tensors behind the outputs; the module itself is not changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from onnxqat.bridge.module import OnnxModule, make
from onnxqat.discover import unknown


def expose(module: nn.Module, names: Sequence[str]) -> nn.Module:
    """A view of `module` whose forward returns its outputs and, behind them, the tensors called `names`.

    Parameters, buffers and submodules are those of `module`. Make the view when the module is on its device.

    Args:
        module: of :func:`onnxqat.to_torch`, where names are those of tensors in the ONNX file, and the view is an fx
            graph that compiles like its original; or any module, where they are paths of submodules.
        names: which tensors, in this order.

    Raises:
        UsageError: ``name-unknown``.
    """
    return _of_graph(module, names) if isinstance(module, OnnxModule) else _Hooked(module, names)


def only(module: OnnxModule, names: Sequence[str]) -> OnnxModule:
    """A view of `module` whose forward returns the tensors called `names` alone, and computes nothing behind them.

    Args:
        module: of :func:`onnxqat.to_torch`.
        names: of tensors in the ONNX file.

    Raises:
        UsageError: ``name-unknown``.
    """
    return _of_graph(module, names, outputs=False)


def _of_graph(module: OnnxModule, names: Sequence[str], *, outputs: bool = True) -> OnnxModule:
    for name in names:
        if name not in module.tensor_nodes:
            raise unknown("tensor", name, sorted(module.tensor_nodes))
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    copied = graph.graph_copy(module.graph, copies)
    by_name = {old.name: new for old, new in copies.items()}
    results: tuple[Any, ...] = copied if isinstance(copied, tuple) else (copied,)
    graph.output((*(results if outputs else ()), *(by_name[module.tensor_nodes[name]] for name in names)))
    if not outputs:
        graph.eliminate_dead_code(is_impure_node=lambda node: node.op in ("placeholder", "output"))
    view = make(module, graph, {})
    view.train(module.training)
    return view


class _Hooked(nn.Module):
    """Any module, and what its submodules `names` returned."""

    def __init__(self, module: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        children = dict(module.named_modules())
        for name in names:
            if name not in children:
                raise unknown("submodule", name, sorted(children))
        self.module = module
        self.names = tuple(names)

    def forward(self, *inputs: Any) -> tuple[Any, ...]:
        """Outputs of the module, then those of the submodules."""
        found: dict[str, Tensor] = {}
        children = dict(self.module.named_modules())

        def keep(name: str) -> Any:
            return lambda _module, _inputs, result: found.__setitem__(name, result)

        handles = [children[name].register_forward_hook(keep(name)) for name in self.names]
        try:
            result = self.module(*inputs)
        finally:
            for handle in handles:
                handle.remove()
        outputs = (result,) if isinstance(result, torch.Tensor) else tuple(result)
        return (*outputs, *(found[name] for name in self.names))
