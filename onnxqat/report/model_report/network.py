"""The graph of a QDQ file without its pairs: operators, and the tensors between them with their quantizers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import onnx_ir as ir

from onnxqat.analysis import dataflow
from onnxqat.graph import qdq, query
from onnxqat.graph.layers import LAYERS
from onnxqat.graph.quantizer import Quantizer
from onnxqat.linting.context import LintContext
from onnxqat.linting.inspect import macs
from onnxqat.report.model_report import schema
from onnxqat.report.model_report.blocks import blocks

FLOAT_BITS = 32
_NO_WEIGHTS = (ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL)  # shapes, indices and masks
DATA, FLOAT, FUSED = "data", "float", "fused"
_BEHIND_LAYERS = frozenset(("BatchNormalization", "Clip", "HardSwish", "LeakyRelu", "PRelu", "Relu"))
"""Operators that compilers compute in the kernel of the layer in front of them."""


@dataclasses.dataclass
class Network:
    """Nodes and edges of the report, with what they were made from.

    Attributes:
        nodes: of the report.
        edges: producer, consumer, quantizer or -1.
        numbers: position of a node of the graph in `nodes`, by its identity.
        makers: position of the node that computes a tensor, by the tensor's name; of graph inputs too.
    """

    nodes: list[schema.Node]
    edges: list[tuple[int, int, int]]
    numbers: dict[int, int]
    makers: dict[str, int]


def network(file: LintContext) -> Network:
    """Build the graph of `file`: inputs, operators of all scopes, outputs."""
    kept = [node for node in file.nodes if not _is_around(file, node)]
    graph = file.model.graph
    inputs = [v for v in graph.inputs if v.name not in graph.initializers]
    found = Network([], [], {}, {})
    for value in inputs:
        found.makers[str(value.name)] = len(found.nodes)
        found.nodes.append(_port("Input", value))
    for node in kept:
        found.numbers[id(node)] = len(found.nodes)
        found.makers.update({str(v.name): len(found.nodes) for v in node.outputs if v.name})
        found.nodes.append(schema.Node(name="", op="", block="", tensor="", shape=None, arithmetic="", reads=[]))
    positions = {id(q): i for i, q in enumerate(file.quantizers)}
    data = dataflow.data_nodes(graph)
    for node in kept:
        _fill(found, file, node, positions, is_data=node.graph is not graph or node in data)
    for value in graph.outputs:
        source, quantizer = _source(file, value)
        number = found.makers.get(str(source.name))
        if number is not None:
            found.edges.append((number, len(found.nodes), _position(positions, quantizer)))
        found.nodes.append(_port("Output", value))
    _name_fused(found)
    links = [(source, target) for source, target, _ in found.edges]
    for entry, block in zip(found.nodes, blocks([n.name for n in found.nodes], links), strict=True):
        entry.block = block
    return found


def _name_fused(found: Network) -> None:
    """Name what stands between a quantized operator and the pair behind it, and so is computed in one kernel with it.

    It reads that operator alone, without a pair; what reads it does so through a pair, or is of the same kind.
    """
    before: dict[int, list[tuple[int, int]]] = {}
    behind: dict[int, list[tuple[int, int]]] = {}
    for source, target, quantizer in found.edges:
        before.setdefault(target, []).append((source, quantizer))
        behind.setdefault(source, []).append((target, quantizer))
    for number in reversed(range(len(found.nodes))):  # the last of a chain first: graph order is topological
        entry = found.nodes[number]
        if entry.arithmetic != FLOAT or entry.op not in _BEHIND_LAYERS or not behind.get(number):
            continue
        if all(found.nodes[target].arithmetic == FUSED for target, quantizer in behind[number] if quantizer < 0):
            entry.arithmetic = FUSED
    for number, entry in enumerate(found.nodes):
        if entry.arithmetic != FUSED:
            continue
        sources = before.get(number, [])
        alone = len(sources) == 1 and sources[0][1] < 0 and len(behind[sources[0][0]]) == 1
        if not alone or found.nodes[sources[0][0]].arithmetic in (FLOAT, DATA):
            entry.arithmetic = FLOAT


def _is_around(file: LintContext, node: ir.Node) -> bool:
    """Check for a node that is part of a pair, or a constant."""
    pair = qdq.is_qdq(node) or file.of_node(node) is not None
    return pair or (node.op_type == "Constant" and not node.domain)


def _port(kind: str, value: ir.Value) -> schema.Node:
    name = str(value.name)
    return schema.Node(name=name, op=kind, block="", tensor=name, shape=shape_of(value), arithmetic=DATA, reads=[])


def shape_of(value: ir.Value) -> list[int | str] | None:
    """Return the dimensions of `value`, symbolic ones by name; None where they are unknown."""
    if value.shape is None:
        return None
    return [d if isinstance(d, int) else (d.value or "?") for d in value.shape]


def _source(file: LintContext, value: ir.Value) -> tuple[ir.Value, Quantizer | None]:
    """Return the float tensor behind `value`, and the last quantizer between; several where widths meet."""
    found = last = file.making(value)
    while found is not None and not found.stored:
        value = found.input
        found = file.making(value)
    return value, last


def _position(positions: dict[int, int], quantizer: Quantizer | None) -> int:
    return -1 if quantizer is None else positions[id(quantizer)]


def _fill(found: Network, file: LintContext, node: ir.Node, positions: dict[int, int], *, is_data: bool) -> None:
    """Put the facts on `node` into its place, and the edges to it into the list."""
    number = found.numbers[id(node)]
    read: list[Quantizer] = []
    seen: set[tuple[int, int]] = set()
    for value in _reads(node):
        source, quantizer = _source(file, value)
        if quantizer is not None:
            read.append(quantizer)
        maker = found.makers.get(str(source.name))
        edge = (-1 if maker is None else maker, _position(positions, quantizer))
        if maker is not None and maker != number and edge not in seen:
            seen.add(edge)
            found.edges.append((maker, number, edge[1]))
    weight, activation = widths(node, read)
    output = next((v for v in node.outputs if v.name), None)
    count = macs(node)
    entry = found.nodes[number]
    entry.name, entry.tensor = query.label(node), "" if output is None else str(output.name)
    entry.op = f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
    entry.shape = None if output is None else shape_of(output)
    entry.reads = list(dict.fromkeys(positions[id(q)] for q in read))
    entry.arithmetic = _arithmetic(node, read, weight, activation, is_data=is_data)
    entry.macs = count
    entry.multiply_bits = None if count is None else count * weight * activation
    entry.weight_bytes = weight_bytes(file, node)


def _reads(node: ir.Node) -> Iterator[ir.Value]:
    """Inputs of `node`, and what its bodies read of the scopes around them."""
    yield from (v for v in node.inputs if v is not None)


def widths(node: ir.Node, read: list[Quantizer]) -> tuple[int, int]:
    """Return the bits of weight and activation that `node` multiplies, :data:`FLOAT_BITS` for what is in float.

    A product of two activations has the width of one in the place of the weight.
    """
    by_output = {id(v): q for q in read for v in q.outputs}
    bits = [
        FLOAT_BITS if v is None or id(v) not in by_output else by_output[id(v)].qparams.qtype.bits
        for v in (*node.inputs[:2], None, None)
    ]
    return bits[1], bits[0]


def _arithmetic(node: ir.Node, read: list[Quantizer], weight: int, activation: int, *, is_data: bool) -> str:
    """Name what `node` computes on, such as W8A8."""
    if not is_data:
        return DATA
    if macs(node) is not None or node.op_type in LAYERS:
        if weight == activation == FLOAT_BITS:
            return FLOAT
        names = ["float" if bits == FLOAT_BITS else str(bits) for bits in (weight, activation)]
        return f"W{names[0]}A{names[1]}"
    inner = [q.qparams.qtype.bits for q in read if q.role == "activation"]
    return f"A{min(inner)}" if inner else FLOAT


def weight_bytes(file: LintContext, node: ir.Node) -> int | None:
    """Return the size of the constants that `node` reads, quantized ones at the width of their codes; None for none."""
    total, found = 0, False
    for value in node.inputs:
        quantizer = None if value is None else file.making(value)
        source = value if quantizer is None else quantizer.input
        tensor = query.constant_tensor(source)
        if tensor is None or (quantizer is None and tensor.dtype in _NO_WEIGHTS):
            continue
        found = True
        bits = tensor.dtype.itemsize * 8 if quantizer is None else quantizer.qparams.qtype.bits
        total += -(-int(tensor.size) * int(bits) // 8)
    return int(total) if found else None
