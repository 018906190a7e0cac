"""Run a stretch of a module's graph, from tensors at its beginning to tensors at its end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from onnxqat.bridge.module import OnnxModule


class GraphRunner:
    """The nodes of a module's graph, and how to compute some of them from others.

    Numbers that depend on the input, such as its batch size, are those of the samples that it is made with, so all
    batches have the same shape.

    Args:
        module: the module; submodules and parameters are its own, so that they can be trained here.
        inputs: its arguments, one batch.
    """

    def __init__(self, module: OnnxModule, inputs: Sequence[Tensor]) -> None:
        self.module = module
        self.nodes: list[fx.Node] = list(module.graph.nodes)
        self.inputs = [n for n in self.nodes if n.op == "placeholder"]
        self.outputs = next(n for n in self.nodes if n.op == "output").all_input_nodes
        self._children: dict[str, nn.Module] = dict(module.named_modules())
        self._depends: set[fx.Node] = set()
        for node in self.nodes:
            if node.op == "placeholder" or any(n in self._depends for n in node.all_input_nodes):
                self._depends.add(node)
        with torch.no_grad():
            values = self._evaluate(self.nodes, dict(zip(self.inputs, inputs, strict=True)))
        self._numbers = {n: v for n, v in values.items() if n in self._depends and not _holds_tensor(v)}
        self._floats = {n for n, v in values.items() if isinstance(v, Tensor) and v.is_floating_point()}

    def is_data(self, node: fx.Node) -> bool:
        """Check whether `node` gives a tensor that depends on the input."""
        return node in self._depends and node not in self._numbers and node.op != "output"

    def is_float(self, node: fx.Node) -> bool:
        """Check whether `node` gives one float tensor that depends on the input."""
        return self.is_data(node) and node in self._floats

    def submodule(self, node: fx.Node) -> nn.Module | None:
        """The submodule that `node` calls."""
        return self._children[str(node.target)] if node.op == "call_module" else None

    def parameter(self, node: fx.Node) -> nn.Parameter | None:
        """The parameter of the module that `node` gives."""
        found = self._attribute(node) if node.op == "get_attr" else None
        return found if isinstance(found, nn.Parameter) else None

    def between(self, entries: Iterable[fx.Node], exits: Iterable[fx.Node]) -> list[fx.Node]:
        """The nodes that compute `exits` from `entries`, in order, those of parameters among them.

        Raises:
            ValueError: something else that depends on the input is needed.
        """
        known = set(entries)
        wanted, waiting = set[fx.Node](), [n for n in exits if n not in known]
        while waiting:
            node = waiting.pop()
            if node in wanted or node in self._numbers:
                continue
            if node.op == "placeholder":
                raise ValueError(f"{node.name} is not known there")
            wanted.add(node)
            waiting.extend(n for n in node.all_input_nodes if n not in known)
        return [n for n in self.nodes if n in wanted]

    def run(self, nodes: Sequence[fx.Node], known: Mapping[fx.Node, Any], exits: Sequence[fx.Node]) -> list[Any]:
        """The values of `exits`, computed by `nodes` (of :meth:`between`) from the values `known`."""
        values = self._evaluate(nodes, {**self._numbers, **known}, set(exits))
        return [values[node] for node in exits]

    def _evaluate(
        self, nodes: Sequence[fx.Node], values: dict[fx.Node, Any], kept: set[fx.Node] | None = None
    ) -> dict[fx.Node, Any]:
        """Values of `nodes` added to `values`; with `kept`, others are let go after their last use."""
        last = {n: node for node in nodes for n in node.all_input_nodes}
        for node in nodes:
            if node.op in ("placeholder", "output"):
                continue
            values[node] = self._call(node, values)
            for used in node.all_input_nodes:
                if kept is not None and last[used] is node and used not in kept and used not in self._numbers:
                    values.pop(used, None)
        return values

    def _call(self, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
        if node.op == "get_attr":
            return self._attribute(node)
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: values[n])
        if node.op == "call_module":
            return self._children[str(node.target)](*args, **kwargs)
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        assert callable(node.target)
        return node.target(*args, **kwargs)

    def _attribute(self, node: fx.Node) -> Any:
        found: Any = self.module
        for name in str(node.target).split("."):
            found = getattr(found, name)
        return found


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(_holds_tensor(v) for v in value)
    return isinstance(value, Tensor)
