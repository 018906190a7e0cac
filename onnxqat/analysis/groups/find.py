"""The groups of a graph: each anchored at one operator that it cannot do without."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from onnxqat.analysis import dataflow
from onnxqat.analysis.groups import activation_functions, attention, group_normalization, normalization, rotary
from onnxqat.analysis.groups.group import Group

_MATCHERS: dict[str, Callable[[ir.Node], Group | None]] = {
    **dict.fromkeys(activation_functions.CURVES, activation_functions.match),
    **dict.fromkeys(normalization.ROOTS, normalization.match),
    "InstanceNormalization": group_normalization.match,
    "Softmax": attention.match,
    "Add": rotary.match,
}


def find(graph: ir.Graph) -> tuple[Group, ...]:
    """The groups of `graph` and of the branches of If in it, in graph order.

    Each is closed: what its nodes pass to each other is read nowhere else. No node is in two; the larger group has it.
    """
    found: list[Group] = []
    for node in dataflow.in_order(graph):
        matcher = None if node.domain else _MATCHERS.get(node.op_type)
        group = None if matcher is None else matcher(node)
        if group is not None and group.is_closed:
            found.append(group)
    taken: set[ir.Node] = set()
    kept: list[Group] = []
    for group in sorted(found, key=lambda g: -len(g.nodes)):
        if taken.isdisjoint(group.nodes):
            taken.update(group.nodes)
            kept.append(group)
    return tuple(group for group in found if any(group is one for one in kept))
