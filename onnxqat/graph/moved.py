"""What lies on a quantizer's grid without a pair of its own, because an operator only moved it there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxqat.graph import query

if TYPE_CHECKING:
    from onnxqat.graph.qdq import Quantizer

MOVES = frozenset(
    {
        "DepthToSpace",
        "Expand",
        "Flatten",
        "Gather",
        "Identity",
        "MaxPool",
        "Reshape",
        "Slice",
        "SpaceToDepth",
        "Split",
        "Squeeze",
        "Tile",
        "Transpose",
        "Unsqueeze",
    }
)
"""Operators whose results are elements of their first input, none made up."""


def carried(found: Iterable[Quantizer]) -> dict[int, Quantizer]:
    """Quantizers of activations by the identity of each value on their grid, dequantized or moved from there.

    Per-tensor grids only: data movement changes what a channel is. A Concat carries the grid that all its inputs have
    from one scale constant and one zero point.
    """
    grids = {id(value): q for q in found for value in q.outputs}
    waiting = [v for q in found if q.qparams.axis is None and q.role == "activation" for v in q.outputs]
    while waiting:
        value = waiting.pop()
        for node in value.consumers():
            quantizer = grids[id(value)]
            if not _carries(node, value, quantizer, grids):
                continue
            for output in _float_outputs(node):
                if id(output) not in grids:
                    grids[id(output)] = quantizer
                    waiting.append(output)
    return grids


def sources(node: ir.Node) -> list[ir.Value]:
    """The inputs whose elements make up the results of `node`; empty where it computes."""
    if node.domain:
        return []
    nearest = node.op_type == "Resize" and query.attribute(node, "mode", "nearest") == "nearest"
    inputs = node.inputs if node.op_type == "Concat" else node.inputs[:1] if nearest or node.op_type in MOVES else ()
    return [value for value in inputs if value is not None]


def _carries(node: ir.Node, value: ir.Value, quantizer: Quantizer, grids: dict[int, Quantizer]) -> bool:
    parts = sources(node)
    if not any(part is value for part in parts):
        return False
    return len(parts) == 1 or all(_same_constants(grids.get(id(part)), quantizer) for part in parts)


def _same_constants(one: Quantizer | None, other: Quantizer) -> bool:
    if one is None:
        return False
    return all(
        [id(v) for v in getattr(one, kind)] == [id(v) for v in getattr(other, kind)]
        for kind in ("scales", "zero_points")
    )


def _float_outputs(node: ir.Node) -> Iterator[ir.Value]:
    """All but the indices that a MaxPool may give."""
    yield from node.outputs[:1] if node.op_type == "MaxPool" else node.outputs
