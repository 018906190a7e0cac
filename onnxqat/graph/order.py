"""The order of nodes: each value is made before it is read.

ONNX asks for it. Some tools write files that are not in order (AMD Quark's XINT8 form, for one), and onnxruntime sorts
the main graph of such a file, but no body of an If, Loop or Scan.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

import onnx
import onnx_ir as ir

from onnxqat.graph import walk


def early_read(nodes: Sequence[onnx.NodeProto]) -> tuple[onnx.NodeProto, str] | None:
    """The first node that reads a value which a later one makes, and the value's name; None where all are in order."""
    made_at = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    for index, node in enumerate(nodes):
        early = next((name for name in reads(node) if made_at.get(name, -1) >= index), None)
        if early is not None:
            return node, early
    return None


def sort(nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto] | None:
    """The same nodes in order, each as early as it was as far as that goes; None where they form a cycle."""
    maker = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    waits = [{maker[name] for name in reads(node) if name in maker} for node in nodes]
    readers: list[list[int]] = [[] for _ in nodes]
    for index, makers in enumerate(waits):
        for other in makers:
            readers[other].append(index)
    left = [len(makers) for makers in waits]
    ready = [index for index, count in enumerate(left) if not count]
    placed = []
    while ready:
        index = heapq.heappop(ready)
        placed.append(nodes[index])
        for reader in readers[index]:
            left[reader] -= 1
            if not left[reader]:
                heapq.heappush(ready, reader)
    return placed if len(placed) == len(nodes) else None


def reads(node: onnx.NodeProto) -> list[str]:
    """Names that a node reads, in its bodies too where these do not make them."""
    found = [name for name in node.input if name]
    for graph in _bodies([node]):
        inside = {v.name for v in graph.input} | {t.name for t in graph.initializer}
        inside |= {name for inner in graph.node for name in inner.output}
        found += [name for inner in graph.node for name in reads(inner) if name not in inside]
        found += [v.name for v in graph.output if v.name not in inside]
    return found


def _bodies(nodes: Iterable[onnx.NodeProto]) -> list[onnx.GraphProto]:
    attributes = [a for node in nodes for a in node.attribute]
    return [a.g for a in attributes if a.HasField("g")] + [g for a in attributes for g in a.graphs]


def is_sorted(graph: ir.Graph) -> bool:
    """Check whether the nodes of a graph in memory, not of its bodies, are in topological order."""
    pending = set(map(id, walk.outputs(graph)))
    for node in graph:
        if any(id(value) in pending for value in node.inputs):
            return False
        pending.difference_update(id(value) for value in node.outputs)
    return True
