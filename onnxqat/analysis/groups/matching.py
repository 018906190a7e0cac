"""Steps from a node to its neighbours, behind what every compiler removes."""

from __future__ import annotations

import onnx_ir as ir

from onnxqat.graph import data_movement, query


def made_by(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    """The node of ONNX's domain that makes `value`, where it is one of `op_types`; None otherwise."""
    value = source(value)
    node = query.producer(value)
    return node if node is not None and not node.domain and node.op_type in op_types else None


def source(value: ir.Value | None) -> ir.Value | None:
    """`value`, or what it is in front of an Identity, a Dropout or a Cast to the same type."""
    while value is not None and (node := value.producer()) is not None and data_movement.is_removed(node):
        value = node.inputs[0]
    return value


def between(value: ir.Value | None) -> list[ir.Node]:
    """The nodes that :func:`source` steps over."""
    found: list[ir.Node] = []
    while value is not None and (node := value.producer()) is not None and data_movement.is_removed(node):
        found.append(node)
        value = node.inputs[0]
    return found


def reader(value: ir.Value, *op_types: str) -> ir.Node | None:
    """The one node that reads `value`, where it is one of `op_types` in the same graph; None otherwise."""
    users = value.consumers()
    if value.is_graph_output() or len(users) != 1 or query.reads(value) != 1:
        return None
    maker = value.producer()
    same = maker is None or users[0].graph is maker.graph
    return users[0] if same and not users[0].domain and users[0].op_type in op_types else None


def scalar(value: ir.Value | None) -> float | None:
    """The number of a constant of one element; None for any other value."""
    stored = query.constant_tensor(value)
    if stored is None or stored.size != 1:
        return None
    try:
        return float(stored.numpy().reshape(()))
    except (TypeError, ValueError):  # a string
        return None


def other(node: ir.Node, value: ir.Value | None) -> ir.Value | None:
    """The input of a node of two inputs that is not `value`."""
    if len(node.inputs) != 2 or value not in tuple(node.inputs):
        return None
    return node.inputs[1] if node.inputs[0] is value else node.inputs[0]


def scaled(value: ir.Value | None) -> tuple[ir.Value | None, float, list[ir.Node]]:
    """Source of `value` in front of products with and divisions by one number, their factor, and these nodes."""
    factor, nodes = 1.0, list[ir.Node]()
    following: ir.Value | None
    while (node := made_by(value, "Mul", "Div")) is not None and node.inputs[0] is not None:
        right, left = scalar(node.inputs[1]), scalar(node.inputs[0])
        if right:
            number, following = right if node.op_type == "Mul" else 1 / right, node.inputs[0]
        elif left and node.op_type == "Mul":
            number, following = left, node.inputs[1]
        else:
            break
        nodes += [*between(value), node]
        factor, value = factor * number, following
    return value, factor, nodes
