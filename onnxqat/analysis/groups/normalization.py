"""LayerNormalization and RMSNormalization that are written out: mean, variance, root, division and the affine part."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from onnxqat.analysis.groups import matching
from onnxqat.analysis.groups.group import Group
from onnxqat.graph import query

ROOTS = ("Sqrt", "Pow")


def match(root: ir.Node) -> Group | None:
    """The normalization whose root of the variance is `root`, a Sqrt or a Pow of -0.5; None where it is none.

    ``d = x - mean(x)``, ``d / sqrt(mean(d * d) + epsilon) * gamma + beta``, as exporters write LayerNormalization and,
    without the subtraction, RMSNormalization; the quotient may be a product with a reciprocal.
    """
    inverted = root.op_type == "Pow"
    if inverted and matching.scalar(root.inputs[1]) != -0.5:
        return None
    shifted = matching.made_by(root.inputs[0], "Add")
    epsilon, data = 0.0, root.inputs[0]
    if shifted is not None:
        given = [(matching.scalar(v), matching.other(shifted, v)) for v in shifted.inputs]
        epsilon, data = next(((e, v) for e, v in given if e is not None), (0.0, None))
    mean = matching.made_by(data, "ReduceMean")
    square = None if mean is None else matching.made_by(mean.inputs[0], "Pow", "Mul")
    if mean is None or square is None:
        return None
    centred = square.inputs[0]
    squares = square.inputs[1] is centred if square.op_type == "Mul" else matching.scalar(square.inputs[1]) == 2
    division = _division(root, centred, inverted=inverted)
    if not squares or not division:
        return None
    nodes = [mean, square, *([] if shifted is None else [shifted]), root, *division]
    subtraction = matching.made_by(centred, "Sub")
    centre = None if subtraction is None else matching.made_by(subtraction.inputs[1], "ReduceMean")
    centres = subtraction is not None and centre is not None and centre.inputs[0] is subtraction.inputs[0]
    source = centred
    if centres and subtraction is not None and centre is not None:
        nodes, source = [centre, subtraction, *nodes], subtraction.inputs[0]
    affine, gamma, beta = _affine_behind(division[-1], centres=centres)
    nodes += affine
    inputs = (source, gamma, beta) if centres else (source, gamma)
    kind = "LayerNormalization" if centres else "RMSNormalization"
    attributes: dict[str, Any] = {"epsilon": epsilon, "axes": _axes(mean)}
    return Group(kind, tuple(nodes), inputs, nodes[-1].outputs[0], attributes=attributes)


def _division(root: ir.Node, centred: ir.Value | None, *, inverted: bool) -> list[ir.Node]:
    """The nodes that divide `centred` by the root; `inverted`: `root` gives its reciprocal."""
    deviation, found = root.outputs[0], list[ir.Node]()
    for user in deviation.consumers():
        if inverted:
            if user.op_type == "Mul" and centred in tuple(user.inputs):
                return [user]
            continue
        if user.op_type == "Div" and user.inputs[0] is centred and user.inputs[1] is deviation:
            return [user]
        inverse = user.op_type == "Reciprocal" or (user.op_type == "Div" and user.inputs[1] is deviation)
        products = user.outputs[0].consumers() if inverse else ()
        found = next(([user, n] for n in products if n.op_type == "Mul" and centred in tuple(n.inputs)), found)
    return found


def _affine_behind(node: ir.Node, *, centres: bool) -> tuple[list[ir.Node], ir.Value | None, ir.Value | None]:
    """The product with a constant and the sum with one behind `node`, as far as nothing else reads in between."""
    found: list[ir.Node] = []
    parts: list[ir.Value | None] = [None, None]
    for place, op_type in enumerate(("Mul", "Add") if centres else ("Mul",)):
        user = _reader_behind(node.outputs[0], op_type)
        constant = None if user is None else next((v for v in user[-1].inputs if _is_constant(v)), None)
        if user is None or constant is None:
            continue
        parts[place] = constant
        found += user
        node = user[-1]
    return found, parts[0], parts[1]


def _reader_behind(value: ir.Value, op_type: str) -> list[ir.Node] | None:
    """The one reader of `value` that is an `op_type`, behind a Cast to the same type, with what lies in between."""
    user = matching.reader(value, op_type, "Cast")
    if user is None or user.op_type == op_type:
        return None if user is None else [user]
    behind = matching.reader(user.outputs[0], op_type) if matching.between(user.outputs[0]) else None
    return None if behind is None else [user, behind]


def _is_constant(value: ir.Value | None) -> bool:
    return query.constant_tensor(value) is not None


def _axes(mean: ir.Node) -> tuple[int, ...] | None:
    """The axes of a mean that keeps them; None where they are not constant or go."""
    given = query.constant_array(query.input_at(mean, 1))
    axes = query.attribute(mean, "axes", None) if given is None else given.reshape(-1)
    if axes is None or not query.attribute(mean, "keepdims", 1):
        return None
    return tuple(int(a) for a in axes)
