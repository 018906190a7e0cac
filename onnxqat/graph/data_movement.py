"""Tensors on a quantizer's grid without a pair of their own, because data movement carried the values there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx_ir as ir

from onnxqat.graph import query
from onnxqat.graph.quantizer import Quantizer

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

_OF_MANY = frozenset({"Concat", "Max", "Mean", "Min", "Sum"})


def carried(found: Iterable[Quantizer]) -> dict[int, Quantizer]:
    """Quantizers of activations by the identity of each value on their grid, dequantized or moved from there.

    Per-tensor grids only: data movement changes what a channel is. A Concat carries the grid that all its inputs have
    from one scale constant and one zero point.
    """
    quantizers = list(found)
    grids = {id(value): q for q in quantizers for value in q.outputs}
    waiting = [v for q in quantizers if q.qparams.axis is None and q.role == "activation" for v in q.outputs]
    joins = _Joins(grids)
    while waiting:
        value = waiting.pop()
        for node in value.consumers():
            quantizer = grids[id(value)]
            if not joins.carries(node, value, quantizer):
                continue
            for output in _float_outputs(node):
                if id(output) not in grids:
                    grids[id(output)] = quantizer
                    waiting.append(output)
    return grids


class _Joins:
    """Decide which nodes carry a grid on, looking at each input of a Concat once and not once per arriving input.

    `grids` only grows, and equality of constants is transitive: an input that has a grid keeps it, and a node whose
    inputs all have grids is decided for good.
    """

    def __init__(self, grids: dict[int, Quantizer]) -> None:
        self._grids = grids
        self._missing: dict[ir.Node, int] = {}  # index of the first input that had no grid when it was looked at
        self._decided: set[ir.Node] = set()

    def carries(self, node: ir.Node, value: ir.Value, quantizer: Quantizer) -> bool:
        """Return True when the outputs of `node` lie on the grid of `value`, one of its inputs, for the first time."""
        if node.domain or node.op_type != "Concat":
            return any(part is value for part in sources(node))
        if node in self._decided:
            return False
        parts, index = node.inputs, self._missing.get(node, 0)
        while index < len(parts) and (parts[index] is None or id(parts[index]) in self._grids):
            index += 1
        self._missing[node] = index
        if index < len(parts):
            return False
        self._decided.add(node)
        return all(_same_constants(self._grids[id(part)], quantizer) for part in parts if part is not None)


def sources(node: ir.Node) -> list[ir.Value]:
    """The inputs whose elements make up the results of `node`; empty where it computes."""
    if node.domain:
        return []
    nearest = node.op_type == "Resize" and query.mode(node) == "nearest"
    repeats = node.op_type == "Pad" and query.mode(node) != "constant"
    one = nearest or repeats or node.op_type in MOVES or is_removed(node)
    inputs = node.inputs if node.op_type == "Concat" else node.inputs[: int(one)]
    return [value for value in inputs if value is not None]


def is_removed(node: ir.Node) -> bool:
    """Check whether `node` returns its first input unchanged: every compiler removes it before it looks at pairs.

    Identity, Dropout at inference, a Cast to the type that its input has, and a Concat, Max, Min, Mean or Sum of one
    input. Dropout in a mode that is computed, or constantly on, computes.
    """
    if node.domain or not node.inputs or node.inputs[0] is None:
        return False
    if node.op_type == "Dropout":
        mode = query.input_at(node, 2)
        known = query.constant_array(mode)
        return mode is None or (known is not None and not known.any())
    if node.op_type == "Cast":
        return node.inputs[0].dtype is not None and bool(query.attribute(node, "to", 0) == node.inputs[0].dtype.value)
    return node.op_type == "Identity" or (node.op_type in _OF_MANY and len(node.inputs) == 1)


def _same_constants(one: Quantizer, other: Quantizer) -> bool:
    return one is other or all(
        [id(v) for v in getattr(one, kind)] == [id(v) for v in getattr(other, kind)]
        for kind in ("scales", "zero_points")
    )


def _float_outputs(node: ir.Node) -> Iterator[ir.Value]:
    """All but the indices that a MaxPool, and the mask that a Dropout may give."""
    yield from node.outputs[:1] if node.op_type in ("MaxPool", "Dropout") else node.outputs
