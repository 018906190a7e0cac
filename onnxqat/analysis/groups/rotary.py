"""Rotary position embedding: ``x * cos + rotated(x) * sin``, where the halves of a head change places and one its sign."""

from __future__ import annotations

import onnx_ir as ir

from onnxqat.analysis.groups import matching
from onnxqat.analysis.groups.group import Group

HALVES = ("Slice", "Split", "Gather")
SHAPES = ("Unsqueeze", "Reshape", "Flatten", "Squeeze")  # around pairs of neighbours in place of halves


def match(added: ir.Node) -> Group | None:
    """The rotary embedding whose sum is `added`, an Add; None where it is none."""
    products = [matching.made_by(v, "Mul") for v in added.inputs]
    for plain, turned in (products, products[::-1]):
        if plain is None or turned is None or plain is turned:
            continue
        for value in turned.inputs:
            found = _rotated(value)
            if found is None or found[0] not in tuple(plain.inputs):
                continue
            source, nodes = found
            cosine, sine = matching.other(plain, source), matching.other(turned, value)
            return Group("RotaryEmbedding", (*nodes, plain, turned, added), (source, cosine, sine), added.outputs[0])
    return None


def _rotated(value: ir.Value | None) -> tuple[ir.Value, list[ir.Node]] | None:
    """The tensor whose halves `value` joins the other way round, the first of them with the other sign, and the nodes."""
    shapes: list[ir.Node] = []
    joined = matching.made_by(value, "Concat", *SHAPES)
    while joined is not None and joined.op_type in SHAPES:
        shapes.append(joined)
        joined = matching.made_by(joined.inputs[0], "Concat", *SHAPES)
    if joined is None or len(joined.inputs) != 2:
        return None
    first, second = (_half(v) for v in joined.inputs)
    if first is None or second is None or first[0] is not second[0] or first[2] == second[2] or not first[2]:
        return None
    nodes = dict.fromkeys([*first[1], *second[1], joined, *reversed(shapes)])
    return first[0], list(nodes)


def _half(value: ir.Value | None) -> tuple[ir.Value, list[ir.Node], bool] | None:
    """The tensor that `value` is a half of, the nodes that cut it out, and whether its sign is changed."""
    nodes, negated = list[ir.Node](), False
    for _ in range(5):  # a shape, a sign, a shape, the cut
        node = matching.made_by(value, "Neg", "Mul", *HALVES, *SHAPES)
        if node is None:
            return None
        nodes.insert(0, node)
        if node.op_type in HALVES:
            return None if node.inputs[0] is None else (node.inputs[0], nodes, negated)
        if node.op_type == "Mul":
            if matching.scalar(node.inputs[1]) != -1:
                return None
            negated = not negated
        elif node.op_type == "Neg":
            negated = not negated
        value = node.inputs[0]
    return None
