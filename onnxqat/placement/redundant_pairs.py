"""Pairs behind data movement that repeat its input's grid, left out for compilers that carry the grid on themselves."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from onnxqat.analysis import dataflow
from onnxqat.placement.plan_builder import PlanBuilder, TensorPlan
from onnxqat.types import Edge, Shared, TensorSpec


def without_repeats(draft: PlanBuilder, edges: list[Edge]) -> tuple[list[Edge], tuple[str, ...]]:
    """`edges` without the pairs of tensors that only move what lies on one grid, and the names of those tensors.

    1. A tensor is bare where its producer moves data and every input that it moves shares its parameters. A
       result of the model keeps its pair.
    2. Where the root of a group is bare, the first of the others that has a pair takes its place.
    """
    repeating = {name for name, tensor in draft.tensors.items() if _repeats(draft, tensor)}
    paired: dict[str, list[str]] = {}
    for edge in edges:
        if edge.tensor not in repeating:
            paired.setdefault(draft.groups.root(edge.tensor), []).append(edge.tensor)
    bare = {name for name in repeating if draft.groups.root(name) in paired}
    left = [edge for edge in edges if edge.tensor not in bare or edge.consumers is not None]
    heirs: dict[Shared, tuple[str, TensorSpec]] = {}
    for edge in edges:
        if edge.tensor in bare and edge.consumers is None and isinstance(edge.decision, TensorSpec):
            heirs[Shared(edge.tensor)] = paired[draft.groups.root(edge.tensor)][0], edge.decision
    return [_inherited(edge, heirs) for edge in left], tuple(name for name in draft.tensors if name in bare)


def _repeats(draft: PlanBuilder, tensor: TensorPlan) -> bool:
    node = tensor.value.producer()
    if node is None or tensor.produced is None or not isinstance(tensor.primary, TensorSpec):
        return False
    if dataflow.leaves_model(tensor.value):
        return False
    moved = _moved_inputs(draft, node)
    root = draft.groups.root(str(tensor.value.name))
    return bool(moved) and all(_lies_on(draft, value, root) for value in moved)


def _moved_inputs(draft: PlanBuilder, node: ir.Node) -> list[ir.Value]:
    """The inputs whose elements `node` only moves."""
    if draft.spreads(node) and draft.moves_float(node):
        return [v for v in node.inputs[:1] if v is not None]
    row, _ = draft.row(node)
    tied = node.op_type == "Concat" and row is not None and row.share == "io" and not row.convert
    return [v for v in node.inputs if v is not None] if tied else []


def _lies_on(draft: PlanBuilder, value: ir.Value, root: str) -> bool:
    tensor = draft.tensors.get(str(value.name))
    if tensor is None or not isinstance(tensor.primary, TensorSpec):
        return False
    return draft.groups.root(str(value.name)) == root


def _inherited(edge: Edge, heirs: dict[Shared, tuple[str, TensorSpec]]) -> Edge:
    """`edge` with the root that its group has now."""
    if not isinstance(edge.decision, Shared) or edge.decision not in heirs:
        return edge
    heir, spec = heirs[edge.decision]
    return dataclasses.replace(edge, decision=spec if edge.tensor == heir else Shared(heir))
