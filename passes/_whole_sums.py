"""Sums of whole numbers that a Cast made float, as the count of tokens that a mask keeps, in whole numbers."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from onnxqat.graph import build, query, walk
from onnxqat.passes._masked_softmaxes import drop_computed

_MOVES = frozenset(
    {"Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Tile", "Transpose", "Unsqueeze"}
)
_WHOLE = frozenset(
    {
        ir.DataType.BOOL,
        *(ir.DataType.INT8, ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64),
        *(ir.DataType.UINT8, ir.DataType.UINT16, ir.DataType.UINT32),
    }
)
"""Types whose numbers int64 holds."""


def replaced(node: ir.Node, names: build.Names) -> bool:
    """Let `node`, a ReduceSum, add whole numbers in int64 where its operand is made of them; returns whether it does.

    The sum is cast behind instead of each number in front. Float32 holds whole numbers and their sums up to 2**24, so the
    result is the same, and more exact where sums are larger.
    """
    given, result = node.inputs[0], node.outputs[0]
    found = _source(given)
    if found is None or given is None:
        return False
    root, moves = found
    scope = walk.scope_of(node)
    whole = root
    if root.dtype is not ir.DataType.INT64:
        whole = _inserted(node, names, "Cast", [root], {"to": int(ir.DataType.INT64)}, root)
    for move in moves:
        whole = _inserted(node, names, move.op_type, [whole, *move.inputs[1:]], _attributes(move), move.outputs[0])
    total = _inserted(node, names, node.op_type, [whole, *node.inputs[1:]], _attributes(node), result)
    name, result.name, kind = str(result.name), None, result.dtype or ir.DataType.FLOAT
    back = build.node("Cast", [total], [name], {"to": int(kind)}, dtype=kind, shape=result.shape, name=node.name)
    scope.insert_before(node, back)
    result.replace_all_uses_with(back.outputs[0], replace_graph_outputs=True)
    scope.remove(node, safe=True)
    drop_computed(given)
    return True


def _source(value: ir.Value | None) -> tuple[ir.Value, tuple[ir.Node, ...]] | None:
    """Return the whole numbers that `value` is made of, and the data movement behind the Cast, in graph order."""
    moves: list[ir.Node] = []
    node = query.producer(value)
    while node is not None and not node.domain and node.op_type in _MOVES:
        moves.append(node)
        node = query.producer(node.inputs[0])
    if node is None or node.domain or node.op_type != "Cast" or not query.is_float(node.outputs[0]):
        return None
    root = node.inputs[0]
    return None if root is None or root.dtype not in _WHOLE else (root, tuple(moves[::-1]))


def _inserted(
    before: ir.Node,
    names: build.Names,
    op_type: str,
    inputs: list[ir.Value | None],
    attributes: dict[str, Any],
    like: ir.Value,
) -> ir.Value:
    name = names.fresh(f"{like.name}_whole")
    made = build.node(op_type, inputs, [name], attributes, dtype=ir.DataType.INT64, shape=like.shape, name=name)
    walk.scope_of(before).insert_before(before, made)
    return made.outputs[0]


def _attributes(node: ir.Node) -> dict[str, Any]:
    return {name: query.attribute(node, name, None) for name in node.attributes}
