"""Scaled dot-product attention: softmax of scaled and masked products of queries and keys, times values."""

from __future__ import annotations

import onnx_ir as ir

from onnxqat.analysis.groups import matching
from onnxqat.analysis.groups.group import Group
from onnxqat.graph import query

MOST_STEPS = 4  # between the products and the softmax: a factor, a mask, another mask


def match(softmax: ir.Node) -> Group | None:
    """The attention whose weights `softmax` makes; None where it is none.

    The factor may lie on queries, keys or scores; the mask is added, or selects in a Where. ``transposed`` says
    that the keys go in as the product reads them, features in front of places.
    """
    rank = query.rank(softmax.outputs[0])
    if int(query.attribute(softmax, "axis", -1)) not in (-1, *(() if rank is None else (rank - 1,))):
        return None
    weighted = _product_behind(softmax)
    found = _scores(softmax.inputs[0])
    if weighted is None or found is None:
        return None
    scores, inner, mask, factor = found
    queries, first, left = matching.scaled(scores.inputs[0])
    keys, second, right = matching.scaled(scores.inputs[1])
    if queries is None or keys is None or query.constant_tensor(keys) is not None:
        return None
    nodes = [*reversed(left), *reversed(right), scores, *reversed(inner), softmax, *weighted]
    attributes = {"scale": factor * first * second, "transposed": True}
    inputs = (queries, keys, weighted[-1].inputs[1], mask)
    return Group("Attention", tuple(nodes), inputs, weighted[-1].outputs[0], attributes=attributes)


def _product_behind(softmax: ir.Node) -> list[ir.Node] | None:
    """The MatMul that alone reads the weights, and a Dropout or the like in front of it."""
    value, between = softmax.outputs[0], list[ir.Node]()
    while (user := matching.reader(value, "MatMul", "Dropout", "Identity", "Cast")) is not None:
        if user.op_type == "MatMul":
            return [*between, user] if user.inputs[0] is value else None
        if not matching.between(user.outputs[0]):
            return None
        between.append(user)
        value = user.outputs[0]
    return None


def _scores(value: ir.Value | None) -> tuple[ir.Node, list[ir.Node], ir.Value | None, float] | None:
    """The product of queries and keys in front of `value`, the nodes in between, the mask and the factor."""
    inner, mask, factor = list[ir.Node](), None, 1.0
    for _ in range(MOST_STEPS):
        value, number, nodes = matching.scaled(value)
        factor, inner = factor * number, inner + nodes
        product = matching.made_by(value, "MatMul")
        if product is not None:
            return product, inner + matching.between(value), mask, factor
        joined = matching.made_by(value, "Add", "Where")
        if joined is None:
            return None
        inner += [*matching.between(value), joined]
        parts = joined.inputs if joined.op_type == "Add" else joined.inputs[1:]
        data = [v for v in parts if _leads_to_product(v)]
        if len(data) != 1:
            return None
        mask = next((v for v in joined.inputs if v is not data[0]), mask)
        value = data[0]
    return None


def _leads_to_product(value: ir.Value | None) -> bool:
    """Check whether `value` is a product with a computed tensor, behind factors and masks."""
    for _ in range(MOST_STEPS):
        value, _, _ = matching.scaled(value)
        if (product := matching.made_by(value, "MatMul")) is not None:
            return query.constant_tensor(product.inputs[1]) is None  # else it is a linear layer
        joined = matching.made_by(value, "Add")
        if joined is None:
            return False
        constant = [query.constant_tensor(v) is not None for v in joined.inputs]
        value = joined.inputs[1 if constant[0] else 0]
    return False
