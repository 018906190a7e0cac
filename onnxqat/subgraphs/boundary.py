"""Boundary between the network and its pre- and post-processing.

The network is the part with weights: convolutions, matrix products with a constant, recurrent layers, embeddings.
*Post-processing* lies behind the last of them and is connected with a step that selects (TopK, NonMaxSuppression,
ArgMax, NonZero, ...): the decoding of boxes in front of that step and the gathering behind it belong to it. A Softmax
at the end of a classifier does not. *Pre-processing* lies in front of the first of them, behind a step that decodes: a
Cast from integers, a Resize, an operator of another domain.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import onnx_ir as ir

from onnxqat.analysis import dataflow
from onnxqat.errors import UsageError
from onnxqat.graph import query, walk
from onnxqat.graph.layers import RECURRENT
from onnxqat.ops import operators
from onnxqat.subgraphs.subgraph import reads

SELECTING = frozenset({"ArgMax", "ArgMin", "Compress", "NonMaxSuppression", "NonZero", "TopK", "Unique"})
CUT_SELECTION = "cut off what only chooses among results, with `onnxqat cut MODEL --outputs TENSOR`"
"""Remedy for outputs whose number of rows depends on values, for hints."""
DECODING = frozenset({"ImageDecoder", "Resize", "Upsample"})
_LAYERS = frozenset({"Einsum", *RECURRENT})  # their rows name no weight; any constant of theirs is one
_KNOWN_DOMAINS = frozenset({"", "ai.onnx"})


@dataclasses.dataclass(frozen=True)
class Boundary:
    """The ends of the network.

    Attributes:
        inputs: tensors behind pre-processing, and graph inputs that have none.
        outputs: tensors in front of post-processing, and graph outputs that have none.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def find(model: ir.Model) -> Boundary:
    """The boundary of `model`.

    Raises:
        UsageError: ``option-invalid``: it has neither pre- nor post-processing, or no weights.
    """
    graph = model.graph
    nodes = list(graph)
    network = {id(node) for node in nodes if any(_is_layer(n, body) for n, body in _nodes_within(node, model))}
    if not network:
        raise UsageError("option-invalid", "no operator with weights was found, so no network to cut out")
    sources = {id(node): _producers(node, graph) for node in nodes}
    before = _closure(network, nodes, sources, towards_inputs=True)  # the network and all that it needs
    tail = _connected([n for n in nodes if id(n) not in before], sources, model)
    behind = _closure(network, nodes, sources, towards_inputs=False)
    front = [n for n in nodes if id(n) not in behind and id(n) in before]
    data = dataflow.data_nodes(graph)
    head = _closure({id(n) for n in front if n in data and _decodes(n)}, front, sources, towards_inputs=False)
    if not tail and not head:
        raise UsageError(
            "option-invalid",
            "no pre- or post-processing was found",
            hint="name the tensors to cut at with --inputs and --outputs",
        )
    outputs = _crossing([n for n in nodes if id(n) not in tail], tail, graph)
    inputs = _starts(model, head, outputs)
    return Boundary(tuple(inputs), tuple(outputs))


def ancestors(model: ir.Model, outputs: Sequence[str]) -> list[str]:
    """Names of all tensors that the tensors `outputs` of the main graph depend on."""
    values = {v.name: v for v in walk.values(model.graph)}
    pending = [values[name] for name in outputs if name in values] or list(model.graph.outputs)
    seen: dict[int, str] = {}
    while pending:
        value = pending.pop()
        producer = value.producer()
        if id(value) not in seen:
            seen[id(value)] = str(value.name)
            pending.extend(reads(producer, model.graph) if producer is not None else ())
    return list(seen.values())


def _nodes_within(node: ir.Node, model: ir.Model, *, in_function: bool = False) -> Iterator[tuple[ir.Node, bool]]:
    """`node`, the nodes of its bodies and of the function that it calls; whether each lies in a function."""
    yield node, in_function
    for body in walk.subgraphs(node):
        for inner in body:
            yield from _nodes_within(inner, model, in_function=in_function)
    for inner in model.functions.get(node.op_identifier(), ()):
        yield from _nodes_within(inner, model, in_function=True)


def _is_layer(node: ir.Node, in_function: bool) -> bool:
    """Check whether `node` has weights; those of a function come in through its inputs."""
    row = operators.find(node.domain, node.op_type)
    if row is None:
        return False
    weights = [v for i, v in enumerate(node.inputs) if row.role(i) == "weight" or node.op_type in _LAYERS]
    if in_function:
        return bool(weights) and node.op_type != "Gather"
    return any(query.is_float(v) and _is_constant(v) for v in weights)


def _is_constant(value: ir.Value | None) -> bool:
    """Check whether a value follows from constants alone, as a weight behind Q and DQ does."""
    producer = query.producer(value)
    if value is None or producer is None:
        return value is not None and value.const_value is not None  # a default that a caller may override included
    return all(v is None or _is_constant(v) for v in producer.inputs)


def _selects(node: ir.Node, model: ir.Model) -> bool:
    known = operators.find(node.domain, node.op_type) is not None or node.op_identifier() in model.functions
    return node.op_type in SELECTING or not known


def _decodes(node: ir.Node) -> bool:
    if node.domain not in _KNOWN_DOMAINS or node.op_type in DECODING:
        return True
    source = node.inputs[0] if node.inputs else None
    from_integers = source is not None and source.dtype is not None and not query.is_float(source)
    return node.op_type == "Cast" and from_integers and query.is_float(node.outputs[0])


def _producers(node: ir.Node, graph: ir.Graph) -> list[ir.Node]:
    found = (value.producer() for value in reads(node, graph))
    return [producer for producer in found if producer is not None and producer.graph is graph]


def _closure(
    seed: set[int], nodes: Sequence[ir.Node], sources: dict[int, list[ir.Node]], *, towards_inputs: bool
) -> set[int]:
    """`seed` with what it needs, or with what needs it, among `nodes`."""
    reached = set(seed)
    for node in reversed(nodes) if towards_inputs else nodes:
        if towards_inputs and id(node) in reached:
            reached.update(id(p) for p in sources[id(node)])
        elif not towards_inputs and any(id(p) in reached for p in sources[id(node)]):
            reached.add(id(node))
    return reached


def _connected(nodes: Sequence[ir.Node], sources: dict[int, list[ir.Node]], model: ir.Model) -> set[int]:
    """Ids of those `nodes` that are joined, along edges among them, with one that selects."""
    inside = {id(node) for node in nodes}
    neighbours: dict[int, set[int]] = {key: set() for key in inside}
    for node in nodes:
        for producer in sources[id(node)]:
            if id(producer) in inside:
                neighbours[id(node)].add(id(producer))
                neighbours[id(producer)].add(id(node))
    reached = {id(node) for node in nodes if any(_selects(n, model) for n, _ in _nodes_within(node, model))}
    pending = list(reached)
    while pending:
        for other in neighbours[pending.pop()] - reached:
            reached.add(other)
            pending.append(other)
    return reached


def _crossing(kept: Iterable[ir.Node], tail: set[int], graph: ir.Graph) -> list[str]:
    """Results of `kept` that the tail reads or that are graph outputs: the latter first."""
    made = list(walk.outputs(kept))
    read = {id(v) for node in graph if id(node) in tail for v in reads(node, graph)}
    own = [str(v.name) for v in graph.outputs if any(v is m for m in made)]
    ends = [str(v.name) for v in made if id(v) in read and query.constant_tensor(v) is None]
    return list(dict.fromkeys([*own, *ends]))


def _starts(model: ir.Model, head: set[int], outputs: Sequence[str]) -> list[str]:
    """Names of the network's inputs: values of the head that it reads, and graph inputs that it reads itself."""
    graph = model.graph
    values = {str(v.name): v for v in walk.values(graph)}
    found: dict[str, None] = {}
    pending, seen = [values[name] for name in outputs], set[int]()
    while pending:
        value = pending.pop()
        producer = value.producer()
        if id(value) in seen:
            continue
        seen.add(id(value))
        from_head = producer is not None and id(producer) in head
        if from_head or (value.is_graph_input() and value.name not in graph.initializers):
            found[str(value.name)] = None
        elif producer is not None:
            pending.extend(reads(producer, graph))
    order = {str(v.name): i for i, v in enumerate(walk.values(graph))}
    return sorted(found, key=order.__getitem__)
