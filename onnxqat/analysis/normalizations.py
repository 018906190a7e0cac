"""Normalizations that are written out in elementary operators."""

from __future__ import annotations

import onnx_ir as ir

from onnxqat.analysis import dataflow
from onnxqat.graph import query


def parts(graph: ir.Graph) -> frozenset[ir.Node]:
    """Nodes of normalizations that are written out: mean, variance, root, division and the affine part behind it.

    ``d = x - mean(x)``, ``d / sqrt(mean(d * d) + epsilon) * gamma + beta``, as exporters write LayerNormalization and,
    without the subtraction, RMSNormalization. Variances of rows differ by orders of magnitude and are divided by: one
    scale for all of them destroys the small ones.
    """
    found: set[ir.Node] = set()
    for node in dataflow.in_order(graph):
        if node.op_type == "Sqrt" and node.domain == "":
            found |= _normalization(node)
    return frozenset(found)


def _normalization(root: ir.Node) -> set[ir.Node]:
    shifted = _made_by(root.inputs[0], "Add")
    mean = _made_by(root.inputs[0] if shifted is None else _data_of(shifted), "ReduceMean")
    square = None if mean is None else _made_by(mean.inputs[0], "Pow", "Mul")
    if mean is None or square is None:
        return set()
    centred = square.inputs[0]
    exponent = query.constant_array(square.inputs[1])
    squares = square.inputs[1] is centred if square.op_type == "Mul" else exponent is not None and bool(exponent == 2)
    division = _division(root, centred)
    if not squares or not division:
        return set()
    found = {root, mean, square, *division} | ({shifted} if shifted is not None else set())
    subtraction = _made_by(centred, "Sub")
    centre = None if subtraction is None else _made_by(subtraction.inputs[1], "ReduceMean")
    if subtraction is not None and centre is not None and centre.inputs[0] is subtraction.inputs[0]:
        found |= {subtraction, centre}
    return found | _affine_behind(division[-1])


def _division(root: ir.Node, centred: ir.Value | None) -> list[ir.Node]:
    """The nodes that divide `centred` by what `root` makes."""
    deviation, found = root.outputs[0], list[ir.Node]()
    for user in deviation.consumers():
        if user.op_type == "Div" and user.inputs[0] is centred and user.inputs[1] is deviation:
            return [user]
        inverse = user.op_type == "Reciprocal" or (user.op_type == "Div" and user.inputs[1] is deviation)
        products = user.outputs[0].consumers() if inverse else ()
        found = next(([user, n] for n in products if n.op_type == "Mul" and centred in tuple(n.inputs)), found)
    return found


def _affine_behind(node: ir.Node) -> set[ir.Node]:
    """A product with a constant and a sum with a constant behind `node`, as far as nothing else reads in between."""
    found: set[ir.Node] = set()
    for op_type in ("Mul", "Add"):
        users = node.outputs[0].consumers()
        if len(users) != 1 or users[0].op_type != op_type or users[0].graph is not node.graph:
            continue
        if any(query.constant_tensor(v) is not None for v in users[0].inputs):
            node = users[0]
            found.add(node)
    return found


def _made_by(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    producer = value.producer() if value is not None else None
    return producer if producer is not None and producer.domain == "" and producer.op_type in op_types else None


def _data_of(node: ir.Node) -> ir.Value | None:
    """The input of a two-input node that is not constant, where the other one is."""
    constant = [query.constant_tensor(v) is not None for v in node.inputs]
    return node.inputs[constant.index(False)] if sorted(constant) == [False, True] else None
