"""Shapes of the values of a graph, as far as they follow from those of its inputs.

onnx's inference gives Reshape, Expand and ConstantOfShape a result of unknown rank where the wanted shape is computed
from dynamic sizes, and everything behind stays unknown with it. The number of wanted sizes is often known all the same.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxqat.graph import shapes, walk

# Operators whose result has as many dimensions as this input has elements.
RANK_FROM_LENGTH = {"Reshape": 1, "ConstantOfShape": 0}


def infer(model: ir.Model) -> ir.Model:
    """`model`, whose values get the shapes that follow; where inference fails for a node, not those behind it."""
    shapes.infer(model, outputs=True)
    while _state_ranks(model):
        shapes.infer(model, outputs=True)
    return model


def _state_ranks(model: ir.Model) -> bool:
    """Give results of known rank and unknown shape a shape without sizes; whether there were any."""
    found = False
    for node in walk.nodes(model):
        if node.domain not in ("", "ai.onnx") or not node.outputs or node.outputs[0].shape is not None:
            continue
        rank = _rank(node)
        if rank is not None:
            node.outputs[0].shape = ir.Shape([None] * rank)
            found = True
    return found


def _rank(node: ir.Node) -> int | None:
    if node.op_type == "Expand" and len(node.inputs) == 2:
        source, length = node.inputs[0], _length(node.inputs[1])
        return None if source is None or source.shape is None or length is None else max(source.shape.rank(), length)
    index = RANK_FROM_LENGTH.get(node.op_type)
    return None if index is None or index >= len(node.inputs) else _length(node.inputs[index])


def _length(value: ir.Value | None) -> int | None:
    """Number of elements of a vector."""
    if value is None or value.shape is None or value.shape.rank() != 1:
        return None
    size = value.shape[0]
    return size if isinstance(size, int) else None
