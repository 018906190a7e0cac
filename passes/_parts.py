"""Operators that a node is written out with, in its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxqat.graph import build, walk


class Parts:
    """The parts of one node of one result.

    Args:
        scope: what holds `node`.
        node: it goes when the parts are closed.
        names: of the model.
        stamp: metadata of the new nodes.
    """

    def __init__(self, scope: walk.Scope, node: ir.Node, names: build.Names, stamp: dict[str, str]) -> None:
        self.scope, self.node, self.names, self.stamp = scope, node, names, stamp
        self.base = str(node.outputs[0].name)

    def made(
        self,
        op_type: str,
        *operands: ir.Value | float | Sequence[int],
        shape: ir.Shape | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> ir.Value:
        """Result of a new node.

        Args:
            op_type: its operator.
            operands: numbers become float32 constants, sequences int64 ones.
            shape: of the result; without, that of the node's result.
            attributes: of the new node.
        """
        name = self.names.fresh(f"{self.base}_{op_type}")
        values = [one if isinstance(one, ir.Value) else self._constant(name, one) for one in operands]
        output = self.node.outputs[0]
        made = build.node(
            op_type,
            values,
            [name],
            attributes,
            dtype=output.dtype,
            shape=output.shape if shape is None else shape,
            name=name,
            stamp=self.stamp,
        )
        self.scope.insert_before(self.node, made)
        return made.outputs[0]

    def close(self, result: ir.Value) -> None:
        """Put `result` in the place of the node's result; its maker keeps the node's name."""
        node, output, last = self.node, self.node.outputs[0], result.producer()
        assert last is not None
        last.name = node.name
        last.metadata_props.update(node.metadata_props)
        result.metadata_props.update(output.metadata_props)
        output.name, result.name = None, self.base
        output.replace_all_uses_with(result, replace_graph_outputs=True)
        self.scope.remove(node, safe=True)

    def _constant(self, name: str, number: float | Sequence[int]) -> ir.Value:
        kind = np.float32 if isinstance(number, (int, float)) else np.int64
        return build.constant(self.scope, self.names.fresh(f"{name}_value"), np.asarray(number, kind), before=self.node)
