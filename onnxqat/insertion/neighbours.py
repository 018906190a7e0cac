"""Nodes that need the pair of a tensor: its producer and its consumers, where the table has rows for them."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from onnxqat.backends.schema import Backend
from onnxqat.graph import query, walk
from onnxqat.placement import fusion_chains, table_widths


class Neighbours:
    """Makers and readers of tensors in a prepared model.

    Args:
        model: prepared float model.
        table: backend table.
    """

    def __init__(self, model: ir.Model, table: Backend) -> None:
        self._table = table
        scopes = list(reversed(list(walk.scopes(model))))  # a function body may repeat names of the main graph
        self.nodes = {str(node.name): node for scope in scopes for node in scope}
        self._values = {str(v.name): v for scope in scopes for v in walk.values(scope)}
        self._makers: dict[str, str] = {}
        for name, node in self.nodes.items():
            if self._has_row(node):
                self._makers |= {str(v.name): name for v in (*node.outputs, fusion_chains.behind(node, table).output)}

    def options(self, tensors: Collection[str]) -> list[tuple[str, ...]]:
        """Sets of nodes that may rid `tensors`, which share one scale, of their pair when they stay float, small ones first.

        What ties the tensors to each other; what reads them; what makes them; both.
        """
        readers = list(dict.fromkeys(name for tensor in tensors for name in self._readers(tensor)))
        makers = list(dict.fromkeys(self._makers[tensor] for tensor in tensors if tensor in self._makers))
        ties = [name for name in readers if self._ties(name, tensors)]
        both = list(dict.fromkeys([*makers, *readers]))
        found = dict.fromkeys(tuple(names) for names in (ties, readers, makers, both) if names)
        return sorted(found, key=len)

    def makers_for(self, name: str) -> tuple[str, ...]:
        """The node `name` and the producers of its inputs; empty if there is no such node."""
        node = self.nodes.get(name)
        if node is None:
            return ()
        return tuple(
            dict.fromkeys(
                [name, *(self._makers[str(v.name)] for v in node.inputs if v is not None and v.name in self._makers)]
            )
        )

    def may_be_wide(self, names: Collection[str]) -> bool:
        """Check whether the backend has 16-bit activations for these nodes (:func:`table_widths.may_be_wide`)."""
        return table_widths.may_be_wide(self._table, [self.nodes[name].op_type for name in names])

    def _readers(self, tensor: str) -> list[str]:
        value = self._values.get(tensor)
        users = () if value is None else value.consumers()
        return [str(node.name) for node in users if self._has_row(node)]

    def _ties(self, name: str, tensors: Collection[str]) -> bool:
        node = self.nodes[name]
        return sum(v is not None and str(v.name) in tensors for v in (*node.inputs, *node.outputs)) > 1

    def _has_row(self, node: ir.Node) -> bool:
        keys = {node.op_type, f"{node.op_type}/{query.mode(node)}"}
        return not node.domain and not keys.isdisjoint(self._table.ops)
