"""Activation recomputation ("gradient checkpointing"): a graph in segments of which only the inputs are kept.

The backward pass runs each segment once more for its inner tensors (``torch.utils.checkpoint``): the same operations on
the same inputs, with the same random numbers, so the gradients have the same bits.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, fx, nn
from torch.utils.checkpoint import checkpoint

from onnxqat.bridge.quantizers.fake_quantize import FakeQuantize

PLACES = ("placeholder", "get_attr", "output")


class Recomputed(nn.Module):
    """`module` in segments; called as it is, it returns the same and shares its parameters and submodules.

    Args:
        module: an fx graph, on its final device.
        segments: how many; None: the square root of the number of operators.
    """

    def __init__(self, module: fx.GraphModule, segments: int | None = None) -> None:
        super().__init__()
        output = next(n for n in module.graph.nodes if n.op == "output")
        self._output = fx.node.map_arg(output.args[0], _placeholder_of)
        self._inputs = [n.name for n in module.graph.nodes if n.op == "placeholder"]
        nodes = [n for n in module.graph.nodes if n.op not in PLACES]
        parts = cut(nodes, segments or max(1, math.isqrt(len(nodes))))
        last_use = _last_uses(parts)
        self.segments = nn.ModuleList()
        self._signatures: list[tuple[list[str], list[str], list[str]]] = []
        for index, part in enumerate(parts):
            needed, given = _segment_ends(part, last_use, index)
            self.segments.append(_segment(module, part, needed, given))
            dead = [name for name, use in last_use.items() if use == index]
            self._signatures.append(([n.name for n in needed], [n.name for n in given], dead))
        self._followed = [_followed(segment) for segment in self.segments]
        returned = [n for n in module.graph.nodes if _is_returned_attribute(n)]
        self._returned = [n.name for n in returned]
        self._attributes = _segment(module, [], [], returned)

    @property
    def follows(self) -> bool:
        """Check whether a forward pass changes buffers or parameters, such as running statistics."""
        return any(self._followed)

    def forward(self, *inputs: Any) -> Any:
        """Return the result of the module for `inputs`."""
        values: dict[str, Any] = dict(zip(self._inputs, inputs, strict=True))
        for index, (segment, (needed, given, dead)) in enumerate(zip(self.segments, self._signatures, strict=True)):
            arguments = [values[name] for name in needed]
            if index + 1 == len(self.segments):  # backward starts with it: nothing is gained
                results = segment(*arguments)
            else:
                # Without a context where none is needed, because torch.compile takes none of this kind.
                run = functools.partial(checkpoint, segment, *arguments, use_reentrant=False)
                followed = self._followed[index]
                results = run(context_fn=_Contexts(followed)) if followed else run()
            values.update(zip(given, results, strict=True))
            for name in dead:
                values.pop(name, None)
        values.update(zip(self._returned, self._attributes(), strict=True))
        return _filled(self._output, values)


@dataclasses.dataclass(frozen=True)
class _Value:
    """Stands for the value of a node in what the graph returns."""

    name: str


def _placeholder_of(node: fx.Node) -> Any:
    return _Value(node.name)


def _filled(template: Any, values: dict[str, Any]) -> Any:
    """`template` with values in place of their names."""
    if isinstance(template, _Value):
        return values[template.name]
    if isinstance(template, (tuple, list)):
        return type(template)([_filled(entry, values) for entry in template])
    return {k: _filled(v, values) for k, v in template.items()} if isinstance(template, dict) else template


_Held = list[tuple[dict[str, Any], str, Tensor]]


class _Contexts:
    """The contexts of a segment's two runs: the second starts from the same statistics and leaves them as they are."""

    def __init__(self, followed: Sequence[tuple[dict[str, Any], str]]) -> None:
        self._followed = followed

    def __call__(self) -> tuple[Any, Any]:
        before: _Held = []
        return self._noted_values(before), _exchanged(before)

    @contextlib.contextmanager
    def _noted_values(self, before: _Held) -> Iterator[None]:
        before += [(home, name, home[name].detach().clone()) for home, name in self._followed]
        yield


@contextlib.contextmanager
def _exchanged(before: _Held) -> Iterator[None]:
    """The tensors of `before` in place of those of now, for the length of a ``with`` block."""
    now = [(home, name, home[name]) for home, name, _ in before]
    for home, name, value in before:
        # Not copied into the tensor of now, which autograd would take for a change of what it has saved.
        home[name] = nn.Parameter(value, requires_grad=False) if isinstance(home[name], nn.Parameter) else value
    try:
        yield
    finally:
        for home, name, value in now:
            home[name] = value


def _followed(segment: nn.Module) -> list[tuple[dict[str, Any], str]]:
    """List the tensors that a forward pass of `segment` may change, as (dictionary, key) of the module that has them.

    These are running statistics (saved floating-point buffers), and all saved buffers and untrained parameters of
    quantizers that follow the data.
    """
    found: list[tuple[dict[str, Any], str]] = []
    for module in segment.modules():
        buffers: dict[str, Any] = module._buffers  # noqa: SLF001 - setattr would count as a new version of the tensor
        passing = module._non_persistent_buffers_set  # noqa: SLF001
        kept = [n for n, v in buffers.items() if v is not None and v.is_floating_point() and n not in passing]
        if kept and isinstance(module, FakeQuantize):
            parameters: dict[str, Any] = module._parameters  # noqa: SLF001
            found += [(buffers, name) for name in buffers if name not in passing]
            found += [(parameters, n) for n, p in parameters.items() if p is not None and not p.requires_grad]
        else:
            found += [(buffers, name) for name in kept]
    return found


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
    """Count, for each place among `nodes`, the values computed before it that are read at or behind it."""
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


def _segment_ends(part: Sequence[fx.Node], last_use: dict[str, int], index: int) -> tuple[list[fx.Node], list[fx.Node]]:
    """Return the nodes of other parts that `part` reads, and its own nodes that later parts read."""
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
