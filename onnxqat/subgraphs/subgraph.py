"""The nodes of the main graph between some tensors and others."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import onnx_ir as ir

from onnxqat.discover import unknown
from onnxqat.errors import UsageError
from onnxqat.graph import walk


@dataclasses.dataclass(frozen=True)
class Subgraph:
    """Nodes that compute `outputs` from `inputs`.

    Attributes:
        inputs: where it starts, in the order asked for.
        outputs: where it ends, in the order asked for.
        nodes: of the main graph, in its order.
    """

    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]
    nodes: tuple[ir.Node, ...]


def region(model: ir.Model, inputs: Sequence[str], outputs: Sequence[str]) -> Subgraph:
    """The nodes that compute the tensors `outputs` from the tensors `inputs` and from constants.

    Tensors are those of the main graph; what a body of If, Loop or Scan reads counts as read by its node.

    Raises:
        UsageError: ``name-unknown``; ``option-invalid``: a name twice, a constant, an output that needs more inputs, an
            input that no output needs, an output that is not computed in between.
    """
    known = {str(v.name): v for v in walk.values(model.graph) if v.name}
    starts, ends = _values(inputs, known, "input"), _values(outputs, known, "output")
    for value in starts:
        if value.producer() is None and not value.is_graph_input():
            raise UsageError("option-invalid", f"input {value.name!r} is a constant, which a part keeps anyhow")
    found, reached = _upstream(model.graph, starts, ends)
    for value in starts:
        if id(value) not in reached:
            raise UsageError("option-invalid", f"none of the outputs needs input {value.name!r}")
    for value in ends:
        if value.producer() is None or id(value) in {id(v) for v in starts}:
            raise UsageError("option-invalid", f"nothing between inputs and outputs computes {value.name!r}")
    return Subgraph(starts, ends, tuple(node for node in model.graph if id(node) in found))


def _values(names: Sequence[str], known: dict[str, ir.Value], what: str) -> tuple[ir.Value, ...]:
    for name in names:
        if name not in known:
            raise unknown("tensor", name, list(known))
    if len(set(names)) != len(names) or not names:
        raise UsageError("option-invalid", f"{what}s {list(names)}: name each tensor once, and at least one")
    return tuple(known[name] for name in names)


def _upstream(graph: ir.Graph, starts: Sequence[ir.Value], ends: Sequence[ir.Value]) -> tuple[set[int], set[int]]:
    """Ids of the nodes that `ends` need, and of the values that were met on the way."""
    stop = {id(v) for v in starts}
    nodes: set[int] = set()
    reached: set[int] = set()
    pending = list(ends)
    while pending:
        value = pending.pop()
        if id(value) in reached:
            continue
        reached.add(id(value))
        producer = value.producer()
        if id(value) in stop:
            continue
        if producer is not None and id(producer) not in nodes:
            nodes.add(id(producer))
            pending.extend(reads(producer, graph))
        elif value.is_graph_input() and value.name not in graph.initializers:
            raise UsageError(
                "option-invalid",
                f"the outputs also need graph input {value.name!r}",
                hint=f"add it to the inputs, or choose inputs that {value.name!r} does not bypass",
            )
    return nodes, reached


def reads(node: ir.Node, graph: ir.Graph) -> Iterator[ir.Value]:
    """The values of `graph` that a node of it reads, those that its bodies read included."""
    yield from (v for v in node.inputs if v is not None)
    for body in walk.subgraphs(node):
        for inner in body.all_nodes():
            yield from (v for v in inner.inputs if v is not None and v.graph is graph)
        yield from (v for v in body.outputs if v.graph is graph)


def discard(graph: ir.Graph, nodes: Iterable[ir.Node]) -> None:
    """Remove nodes of `graph` that nothing else reads, with their bodies, which would go on reading tensors of `graph`."""
    for node in reversed(list(nodes)):
        for body in walk.subgraphs(node):
            for inner in list(body.all_nodes()):
                for index in range(len(inner.inputs)):
                    inner.replace_input_with(index, None)
            body.outputs.clear()
        graph.remove(node, safe=True)
