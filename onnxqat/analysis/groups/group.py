"""A group: the nodes that compute one thing together, what goes in and what comes out."""

from __future__ import annotations

import dataclasses
from typing import Any

import onnx_ir as ir

from onnxqat.graph import walk


@dataclasses.dataclass(frozen=True)
class Group:
    """Nodes that compute one thing.

    Attributes:
        kind: what it is, by the name of ONNX's operator where there is one.
        nodes: its nodes; the one that makes `output` is the last.
        inputs: what goes in, in the order of ONNX's operator; None where there is none of that input.
        output: what comes out.
        form: which of several formulas, such as ``erf`` or ``tanh`` of a Gelu.
        attributes: numbers of the formula, such as ``epsilon``.
    """

    kind: str
    nodes: tuple[ir.Node, ...]
    inputs: tuple[ir.Value | None, ...]
    output: ir.Value
    form: str = ""
    attributes: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def is_closed(self) -> bool:
        """Check whether nothing outside reads what the nodes pass to each other, and all lie in one graph."""
        inside = set(self.nodes)
        if any(node.graph is not self.nodes[-1].graph for node in self.nodes):
            return False
        inner = (v for v in walk.outputs(self.nodes) if v is not self.output)
        return all(not v.is_graph_output() and all(user in inside for user in v.consumers()) for v in inner)
