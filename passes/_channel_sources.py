"""Nodes without weights that make the channels of a product's input, and the constants that hold their sizes."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnxqat.graph import query, walk
from onnxqat.passes import _linked_layers as linked
from onnxqat.passes._edits import is_private
from onnxqat.passes._inference import Inferred

NORMALIZATIONS = {
    ("", "LayerNormalization"): (1, 2),
    ("", "RMSNormalization"): (1,),
    ("", "SimplifiedLayerNormalization"): (1,),
    ("com.microsoft", "SkipLayerNormalization"): (2, 3),
    ("com.microsoft", "SkipSimplifiedLayerNormalization"): (2,),
}
"""Operators that multiply by a constant row, and may add one, with the numbers of these inputs."""


def find(scope: walk.Scope, inferred: Inferred | None = None) -> Iterator[linked.Link]:
    """Links from a normalization, or a product with a constant row, to the Gemm and MatMul that alone read it, in order.

    Args:
        scope: the main graph, a subgraph or a function.
        inferred: shapes that the model does not state.
    """
    for node in list(scope):
        found = _row_of(node)
        if found is None:
            continue
        made, constants, channels = found
        link = linked.follow(scope, node, made, -1, channels, constants, inferred)
        if isinstance(link, linked.Link) and not link.is_bounded:
            yield link


def _row_of(node: ir.Node) -> tuple[ir.Value, tuple[tuple[ir.Node, int], ...], int] | None:
    """Result of a node with a constant row, the places of the constants, and the number of channels."""
    numbers = NORMALIZATIONS.get((node.domain, node.op_type))
    if numbers is not None:
        places = tuple((node, i) for i in numbers if query.input_at(node, i) is not None)
        channels = _channels(node, numbers[0])
        if channels is None or any(_channels(*place) != channels for place in places):
            return None
        last = query.attribute(node, "axis", -1) in (-1, (query.rank(node.inputs[0]) or 0) - 1)
        return (node.outputs[0], places, channels) if last else None
    index = _constant_of(node, "Mul")
    channels = None if index is None else _channels(node, index)
    if index is None or channels is None:
        return None
    made, places = node.outputs[0], ((node, index),)
    added = next(iter(made.consumers()), None) if is_private(made) else None
    offset = None if added is None or added.graph is not node.graph else _constant_of(added, "Add")
    if added is not None and offset is not None and _channels(added, offset) == channels:
        return added.outputs[0], (*places, (added, offset)), channels
    return made, places, channels


def _constant_of(node: ir.Node, op_type: str) -> int | None:
    """The number of the one input of a Mul or Add that is constant."""
    if node.op_type != op_type or node.domain:
        return None
    constant = [i for i, v in enumerate(node.inputs) if query.constant_tensor(v) is not None]
    return constant[0] if len(constant) == 1 else None


def _channels(node: ir.Node, index: int) -> int | None:
    """Length of a constant row of floats, with leading axes of 1 or without; None where it is something else."""
    tensor = query.constant_tensor(node.inputs[index]) if len(node.inputs) > index else None
    if tensor is None or tensor.dtype not in query.FLOATS or not len(tensor.shape):
        return None
    shape = [int(d) for d in tensor.shape.numpy()]
    return shape[-1] if tensor.size == shape[-1] else None
