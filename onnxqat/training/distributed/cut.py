"""Cutting a flat fx graph into blocks that run one after the other."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterable
from typing import Any, cast

from torch import Tensor, fx, nn

ROOT = -1
"""Home of what belongs to no block."""


@dataclasses.dataclass(frozen=True)
class Cut:
    """Assignment of each node of a graph to a block.

    Attributes:
        graph: the flat graph.
        homes: number of the block of each node; :data:`ROOT` for arguments, the result, and nodes computed from
            constants alone that several blocks read.
        count: number of blocks.
    """

    graph: fx.Graph
    homes: dict[fx.Node, int]
    count: int

    def inputs(self, block: int) -> list[fx.Node]:
        """The nodes outside `block` that it reads."""
        read = (n for node in self._nodes(block) for n in node.all_input_nodes if self.homes[n] != block)
        return list(dict.fromkeys(read))

    def outputs(self, block: int) -> list[fx.Node]:
        """The nodes of `block` that others read."""
        return [node for node in self._nodes(block) if any(self.homes[user] != block for user in node.users)]

    def block(self, number: int) -> fx.Graph:
        """The graph of a block: from :meth:`inputs` to a tuple of :meth:`outputs`, none of them a view."""
        graph = fx.Graph()
        found = {node: graph.placeholder(node.name) for node in self.inputs(number)}
        for node in self._nodes(number):
            found[node] = graph.node_copy(node, found.__getitem__)
        graph.output(tuple(graph.call_function(owned, (found[node],)) for node in self.outputs(number)))
        return graph

    def root(self) -> fx.Graph:
        """The graph that calls the blocks, as submodules ``block_0`` and so on."""
        graph = fx.Graph()
        found: dict[fx.Node, fx.Node] = {}
        for node in self._nodes(ROOT):
            if node.op != "output":
                found[node] = graph.node_copy(node, found.__getitem__)
        for number in range(self.count):
            call = graph.call_module(f"block_{number}", tuple(found[node] for node in self.inputs(number)))
            for index, node in enumerate(self.outputs(number)):
                found[node] = graph.call_function(operator.getitem, (call, index))
        for node in self._nodes(ROOT):
            if node.op == "output":
                graph.node_copy(node, found.__getitem__)
        return graph

    def _nodes(self, home: int) -> Iterable[fx.Node]:
        return [node for node in self.graph.nodes if self.homes[node] == home]


def owned(value: Any) -> Any:
    """`value`, a copy where it is a view of another tensor: what FSDP2 hangs on the result of a block could get lost."""
    return value.clone() if isinstance(value, Tensor) and value._is_view() else value  # noqa: SLF001


def cut(module: fx.GraphModule, block_bytes: int) -> Cut:
    """Cut the graph of `module` into runs of nodes that read at most `block_bytes` of parameters, but at least one.

    A parameter, with what is computed from it alone, goes to the block that reads it. A value that is computed from
    parameters and crossed into another block could share their memory, which is given back behind the block: what
    several blocks read is the root's.
    """
    constant = _constants(module.graph)
    homes: dict[fx.Node, int] = {}
    seen: set[fx.Node] = set()
    block, held = 0, 0
    for node in module.graph.nodes:
        if node.op in ("placeholder", "output"):
            homes[node] = ROOT
        elif node not in constant:
            read = _attributes_behind(node, constant) - seen
            size = sum(_bytes(module, attribute) for attribute in read)
            if held and size and held + size > block_bytes:
                block, held = block + 1, 0
            seen |= read
            held += size
            homes[node] = block
    for node in reversed(module.graph.nodes):
        if node in constant:
            readers = {homes[user] for user in node.users}
            movable = node.op != "get_attr" or is_parameter(module, node)
            homes[node] = readers.pop() if len(readers) == 1 and movable else ROOT
    return Cut(module.graph, homes, block + 1)


def is_parameter(module: nn.Module, node: fx.Node) -> bool:
    """Check whether a ``get_attr`` node reads a parameter of `module` itself, of at least one dimension."""
    found = module._parameters.get(cast(str, node.target))  # noqa: SLF001 - submodules do not count
    return found is not None and found.ndim > 0


def _constants(graph: fx.Graph) -> set[fx.Node]:
    """The nodes that are computed from attributes alone."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        reads = node.all_input_nodes
        if node.op == "get_attr" or (node.op != "output" and reads and all(n in found for n in reads)):
            found.add(node)
    return found


def _attributes_behind(node: fx.Node, constant: set[fx.Node]) -> set[fx.Node]:
    """The ``get_attr`` nodes that `node` reads, directly or through nodes of `constant`."""
    found: set[fx.Node] = set()
    left = [n for n in node.all_input_nodes if n in constant]
    while left:
        here = left.pop()
        if here.op == "get_attr":
            found.add(here)
        left += here.all_input_nodes
    return found


def _bytes(module: nn.Module, node: fx.Node) -> int:
    if not is_parameter(module, node):
        return 0
    parameter = module.get_parameter(cast(str, node.target))
    return parameter.numel() * parameter.element_size()
