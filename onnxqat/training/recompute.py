"""Activation recomputation ("gradient checkpointing"): a graph in segments of which only the inputs are kept.

The backward pass runs each segment once more for its inner tensors (``torch.utils.checkpoint``): the same operations on
the same inputs, with the same random numbers, so the gradients have the same bits.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, fx, nn
from torch.utils.checkpoint import checkpoint

PLACES = ("placeholder", "get_attr", "output")


class Recomputed(nn.Module):
    """`module` in segments; called as it is, it returns the same and shares its parameters and submodules.

    Args:
        module: an fx graph, on its final device.
        segments: how many; None: the square root of the number of operators.
    """

    def __init__(self, module: fx.GraphModule, segments: int | None = None) -> None:
        super().__init__()
        self._graph = module.graph
        self._inputs = [n.name for n in module.graph.nodes if n.op == "placeholder"]
        nodes = [n for n in module.graph.nodes if n.op not in PLACES]
        parts = cut(nodes, segments or max(1, math.isqrt(len(nodes))))
        last_use = _last_uses(parts)
        self.segments = nn.ModuleList()
        self._signatures: list[tuple[list[str], list[str], list[str]]] = []
        for index, part in enumerate(parts):
            needed, given = _ends(part, last_use, index)
            self.segments.append(_segment(module, part, needed, given))
            dead = [name for name, use in last_use.items() if use == index]
            self._signatures.append(([n.name for n in needed], [n.name for n in given], dead))
        self._attributes = _segment(module, [], [], [n for n in module.graph.nodes if _is_returned_attribute(n)])

    def forward(self, *inputs: Any) -> Any:
        """What the module returns for `inputs`."""
        values: dict[str, Any] = dict(zip(self._inputs, inputs, strict=True))
        for index, (segment, (needed, given, dead)) in enumerate(zip(self.segments, self._signatures, strict=True)):
            arguments = [values[name] for name in needed]
            if index + 1 == len(self.segments):  # backward starts with it: nothing is gained
                results = segment(*arguments)
            else:
                results = checkpoint(segment, *arguments, use_reentrant=False, context_fn=_Contexts(segment))
            values.update(zip(given, results, strict=True))
            for name in dead:
                values.pop(name, None)
        returned = [n.name for n in self._graph.nodes if _is_returned_attribute(n)]
        values.update(zip(returned, self._attributes(), strict=True))
        output = next(n for n in self._graph.nodes if n.op == "output")
        return fx.node.map_arg(output.args[0], lambda n: values[n.name])


class _Contexts:
    """The contexts of a segment's first and second run: the second leaves running statistics alone."""

    def __init__(self, segment: nn.Module) -> None:
        self._segment = segment

    def __call__(self) -> tuple[Any, Any]:
        return contextlib.nullcontext(), _copied_buffers(self._segment)


@contextlib.contextmanager
def _copied_buffers(segment: nn.Module) -> Iterator[None]:
    """Copies in place of the floating-point buffers: BatchNormalization counts a batch once."""
    kept: list[tuple[dict[str, Tensor | None], str, Tensor]] = []
    for module in segment.modules():
        for name, value in module._buffers.items():  # noqa: SLF001 - setattr would count as a new version of the buffer
            if value is not None and value.is_floating_point():
                kept.append((module._buffers, name, value))  # noqa: SLF001
    for buffers, name, value in kept:
        buffers[name] = value.clone()
    try:
        yield
    finally:
        for buffers, name, value in kept:
            buffers[name] = value


def cut(nodes: Sequence[fx.Node], segments: int) -> list[list[fx.Node]]:
    """`nodes`, in the order of the graph, in about `segments` parts of similar length.

    Around each even cut the place is taken that the fewest values cross.
    """
    count = len(nodes)
    segments = max(1, min(segments, count))
    crossing = _crossing(nodes)
    window = max(1, count // (2 * segments))
    cuts = [0]
    for index in range(1, segments):
        ideal = round(index * count / segments)
        places = range(max(cuts[-1] + 1, ideal - window), min(count - 1, ideal + window) + 1)
        if places:
            cuts.append(min(places, key=lambda place: (crossing[place], abs(place - ideal))))
    cuts.append(count)
    return [list(nodes[start:end]) for start, end in itertools.pairwise(cuts)]


def _crossing(nodes: Sequence[fx.Node]) -> list[int]:
    """How many values of nodes before each place are read at or behind it."""
    position = {node: index for index, node in enumerate(nodes)}
    change = [0] * (len(nodes) + 1)
    for index, node in enumerate(nodes):
        last = max((position.get(user, len(nodes)) for user in node.users), default=index)
        change[index + 1 if index < len(nodes) else index] += 1
        if last < len(nodes):
            change[last + 1] -= 1
    total, crossing = 0, []
    for step in change:
        total += step
        crossing.append(total)
    return crossing


def _last_uses(parts: Sequence[Sequence[fx.Node]]) -> dict[str, int]:
    """Number of the last part that reads each value; what the graph returns is read by a part behind the last."""
    last: dict[str, int] = {}
    for index, part in enumerate(parts):
        for node in part:
            last.update((read.name, index) for read in node.all_input_nodes if read.op != "get_attr")
            if any(user.op == "output" for user in node.users):
                last[node.name] = len(parts)
            for read in node.all_input_nodes:
                if any(user.op == "output" for user in read.users):
                    last[read.name] = len(parts)
    return last


def _ends(part: Sequence[fx.Node], last_use: dict[str, int], index: int) -> tuple[list[fx.Node], list[fx.Node]]:
    """What `part` reads of others, and what others read of it."""
    inside = set(part)
    needed = {r: None for n in part for r in n.all_input_nodes if r not in inside and r.op != "get_attr"}
    return list(needed), [n for n in part if last_use.get(n.name, -1) > index]


def _is_returned_attribute(node: fx.Node) -> bool:
    return node.op == "get_attr" and any(user.op == "output" for user in node.users)


def _segment(
    module: fx.GraphModule, part: Sequence[fx.Node], needed: Sequence[fx.Node], given: Sequence[fx.Node]
) -> fx.GraphModule:
    """A module of the nodes of `part` that takes the values of `needed` and returns the tuple of those of `given`."""
    graph = fx.Graph()
    copied = {node: graph.placeholder(node.name) for node in needed}
    attributes = {r: None for n in part for r in n.all_input_nodes if r.op == "get_attr"}
    for node in (*attributes, *(n for n in given if n.op == "get_attr"), *part):
        copied[node] = graph.node_copy(node, lambda n: copied[n])
    graph.output(tuple(copied[node] for node in given))
    return fx.GraphModule(module, graph)
