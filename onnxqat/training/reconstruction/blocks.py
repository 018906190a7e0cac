"""Cut a graph into blocks: stretches with one tensor at their beginning and one at their end.

Where a single tensor is all that the rest of the network needs, the graph can be cut. Between two neighbouring cuts
lies an operator of a chain, or all branches up to where they join again: the residual block of Li et al., "BRECQ:
Pushing the Limit of Post-Training Quantization by Block Reconstruction", ICLR 2021.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Sequence
from typing import Literal

import torch
from torch import fx

from onnxqat.bridge.quantizers.fake_quantize import FakeQuantize
from onnxqat.training.reconstruction.execution import GraphRunner

Order = Literal["layer", "block"]

MOST_LAYERS = 8
"""A block of more weighted layers is reconstructed layer by layer: a network whose branches never join is one block."""

_RECTIFIERS = (torch.relu, torch.nn.functional.relu, torch.clamp)


@dataclasses.dataclass(frozen=True)
class Block:
    """Part of a graph that is reconstructed as one.

    Attributes:
        entries: nodes whose values are given; one, but for the arguments of the network.
        exit: the node whose value is compared with that of the float network.
        layers: weight quantizers inside.
        activations: quantizers of activations inside.
        name: ONNX name of the tensor at the end, as far as it has one.
    """

    entries: tuple[fx.Node, ...]
    exit: fx.Node
    layers: tuple[FakeQuantize, ...]
    activations: tuple[FakeQuantize, ...]
    name: str


@dataclasses.dataclass(frozen=True)
class Region:
    """A stretch between two cuts, and the blocks in it: itself, or its layers one after the other."""

    entries: tuple[fx.Node, ...]
    exits: tuple[fx.Node, ...]
    blocks: tuple[Block, ...]


def regions(runner: GraphRunner, order: Order) -> list[Region]:
    """The whole graph as regions in order; the exits of one are the entries of the next."""
    place = {node: i for i, node in enumerate(runner.nodes)}
    weighted = {n: found for n in runner.nodes if runner.is_data(n) and (found := weights_of(runner, n))}
    outputs = [n for n in dict.fromkeys(runner.outputs) if runner.is_data(n) and n.op != "placeholder"]
    result: list[Region] = []
    entries: tuple[fx.Node, ...] = tuple(runner.inputs)
    begin = -1
    for end in (*_region_ends(runner, weighted), None):
        stop = len(place) if end is None else place[end]
        heads = [n for n in outputs if begin < place[n] <= stop]
        exits = tuple(dict.fromkeys((*heads, *(() if end is None else (end,)))))
        nodes = runner.between(entries, exits)
        layers = [n for n in nodes if n in weighted]
        if order == "block" and len(exits) == 1 and 0 < len(layers) <= MOST_LAYERS and runner.is_float(exits[0]):
            blocks = [_block(runner, entries, exits[0], nodes, weighted)]
        else:
            blocks = [
                _layer(runner, n, value, weighted) for n in layers if (value := _float_value(runner, n)) is not None
            ]
        result.append(Region(entries, exits if end is None else (end,), tuple(blocks)))
        if end is not None:
            entries, begin = (end,), place[end]
    return result


def weights_of(runner: GraphRunner, node: fx.Node) -> list[FakeQuantize]:
    """The weight quantizers between the parameters and `node`, which reads what they give."""
    found: list[FakeQuantize] = []
    waiting = [n for n in node.all_input_nodes if not runner.is_data(n)]
    while waiting:
        source = waiting.pop()
        quantizer = runner.submodule(source)
        if isinstance(quantizer, FakeQuantize) and quantizer.role == "weight":
            found.append(quantizer)
        waiting.extend(n for n in source.all_input_nodes if not runner.is_data(n))  # the shape of data is none
    return found


def _float_value(runner: GraphRunner, node: fx.Node) -> fx.Node | None:
    """Return a layer's float value: itself, or the first read item of an LSTM's tuple; None where there is none."""
    parts = [n for n in node.users if n.target is operator.getitem]
    found = [n for n in (node, *sorted(parts, key=lambda n: n.args[1])) if runner.is_float(n)]  # type: ignore[arg-type, return-value]
    return next(iter(found), None)


def _region_ends(runner: GraphRunner, weighted: dict[fx.Node, list[FakeQuantize]]) -> list[fx.Node]:
    """List the nodes that end a region, in graph order.

    Each region but the last ends at the last cut in front of the next weighted layer, or of the next branches with
    weighted layers; where a quantizer is that cut, at the one in front of it.
    """
    cuts = _cuts(runner)
    ends: list[fx.Node] = []
    chosen: fx.Node | None = None  # the last cut that may end the region: a quantizer belongs to its consumer
    has_layer = passed = False
    for node in runner.nodes:
        passed = passed or node in weighted
        if node not in cuts:
            continue
        if passed and has_layer and chosen is not None:
            ends.append(chosen)
        if passed or not isinstance(runner.submodule(node), FakeQuantize):
            chosen = node
        has_layer, passed = has_layer or passed, False
    if passed and has_layer and chosen is not None:
        ends.append(chosen)  # there are layers behind the last cut too
    return ends


def _cuts(runner: GraphRunner) -> set[fx.Node]:
    """Nodes whose value is the only one that is needed once it is known; outputs of the network are never needed."""
    place = {node: i for i, node in enumerate(runner.nodes)}
    last: dict[fx.Node, int] = {}
    for node in filter(runner.is_data, runner.nodes):
        last[node] = max((place[user] for user in node.users if runner.is_data(user)), default=-1)
    cuts = set()
    reach = -1  # how far the values known before the node are needed
    for node, end in last.items():
        if reach <= place[node] and end > place[node]:
            cuts.add(node)
        reach = max(reach, end)
    return {n for n in cuts if runner.is_float(n) and n.op != "placeholder"}


def _block(
    runner: GraphRunner,
    entries: tuple[fx.Node, ...],
    end: fx.Node,
    nodes: Sequence[fx.Node],
    weighted: dict[fx.Node, list[FakeQuantize]],
) -> Block:
    called = [q for n in nodes if isinstance(q := runner.submodule(n), FakeQuantize)]
    activations = tuple(dict.fromkeys(q for q in called if q.role == "activation"))
    layers = tuple(dict.fromkeys(q for n in nodes for q in weighted.get(n, ())))
    return Block(entries, end, layers, activations, str(end.meta.get("onnx_name", end.name)))


def _layer(runner: GraphRunner, node: fx.Node, value: fx.Node, weighted: dict[fx.Node, list[FakeQuantize]]) -> Block:
    """One weighted layer that gives `value`, with the quantizers of its inputs and the rectifier behind it."""
    sources = [n for n in node.all_input_nodes if runner.is_data(n)]
    quantized = [isinstance(runner.submodule(n), FakeQuantize) for n in sources]
    entries = tuple(dict.fromkeys(n.args[0] if q else n for n, q in zip(sources, quantized, strict=True)))
    known = tuple(n for n in entries if isinstance(n, fx.Node))
    users = [n for n in value.users if runner.is_data(n)]
    end = users[0] if len(users) == 1 and users[0].target in _RECTIFIERS else value
    return _block(runner, known, end, runner.between(known, [end]), weighted)
