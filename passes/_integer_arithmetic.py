"""Float arithmetic that serves integers: sizes, positions and masks that are computed from integers alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import onnx_ir as ir

from onnxqat.graph import qdq, query, walk
from onnxqat.ops import operators as operators
from onnxqat.passes._edits import inline_graphs

TypeOf = Callable[["ir.Value | None"], "ir.DataType | None"]

_DATA = frozenset(kind for kind in ir.DataType if "FLOAT" in kind.name or kind is ir.DataType.DOUBLE)


def integer_arithmetic(model: ir.Model, types: Collection[ir.DataType], type_of: TypeOf) -> frozenset[int]:
    """The nodes, by identity, that compute in one of `types` on values from integers and constants alone.

    Nodes that hand each other a value of these types belong together. They serve integers when no float value enters
    them but constants, none of the types leaves the graph, and no node among them has a weight, a quantizer, a body, or
    a meaning that is not ONNX's own. What they compute may go on in float32, through a Cast of the file.

    Args:
        model: it is not changed.
        types: element types.
        type_of: element type of a value, None where it is unknown.
    """
    groups, entered = _Groups(), list[ir.Node]()
    for graph in inline_graphs(model):
        for node in graph:
            if node.op_type == "Constant" or not any(type_of(v) in types for v in (*node.inputs, *node.outputs)):
                continue
            groups.add(node)
            left = any(v.is_graph_output() and type_of(v) in types for v in node.outputs)
            if left or not _is_plain(model, node) or _goes_on(node, type_of):
                entered.append(node)
            for value in _variables(node):
                maker = value.producer()
                if type_of(value) in types and maker is not None:
                    groups.join(node, maker)
                    if maker.graph is not node.graph:
                        entered.append(node)
                elif type_of(value) is None or type_of(value) in _DATA:
                    entered.append(node)
    data = {groups.root(id(node)) for node in entered}
    return frozenset(node for node in groups.members() if groups.root(node) not in data)


def _goes_on(node: ir.Node, type_of: TypeOf) -> bool:
    """Check whether `node` reads float16 and returns another float type."""
    reads = any(type_of(v) is ir.DataType.FLOAT16 for v in node.inputs)
    return reads and any(type_of(v) in _DATA and type_of(v) is not ir.DataType.FLOAT16 for v in node.outputs)


def _variables(node: ir.Node) -> Iterator[ir.Value]:
    yield from (v for v in node.inputs if v is not None and query.constant_tensor(v) is None)


def _is_plain(model: ir.Model, node: ir.Node) -> bool:
    if node.domain not in ("", "ai.onnx") or node.op_identifier() in model.functions:
        return False
    if qdq.is_qdq(node) or any(True for _ in walk.subgraphs(node)):
        return False
    row = operators.find("", node.op_type)
    return row is None or "weight" not in row.inputs


class _Groups:
    """Nodes that belong together (union-find)."""

    def __init__(self) -> None:
        self._parents: dict[int, int] = {}

    def add(self, node: ir.Node) -> None:
        self._parents.setdefault(id(node), id(node))

    def join(self, node: ir.Node, other: ir.Node) -> None:
        self.add(other)
        self._parents[self.root(id(node))] = self.root(id(other))

    def root(self, node: int) -> int:
        while self._parents[node] != node:
            self._parents[node] = self._parents[self._parents[node]]
            node = self._parents[node]
        return node

    def members(self) -> list[int]:
        return list(self._parents)
