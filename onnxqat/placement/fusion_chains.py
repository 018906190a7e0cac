"""Operator chains that a backend fuses, and the composite patterns that a chain may name."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import onnx_ir as ir

from onnxqat.backends.schema import Backend, Chain
from onnxqat.graph import batchnorm, data_movement, linear, query
from onnxqat.types import RedundantClip

SATURATED = {"Sigmoid": 8.0, "Tanh": 4.0}

_MARGIN = 1.04
"""Factor of the range in front of a HardSigmoid. On its very window, 255 steps become 255 steps with the offset of 127.5: each
result is half-way between two codes. 4 % more leave half of that error, 2 % and 8 % as much within a tenth."""


@dataclasses.dataclass(frozen=True)
class Fusion:
    """A chain found behind an operator: where it starts and where its output is, and the nodes of it.

    `start` is the operator's own result, behind a BatchNormalization that is kept; `chain` the row of the table.
    """

    start: ir.Value
    output: ir.Value
    members: tuple[ir.Node, ...]
    redundant: tuple[RedundantClip, ...] = ()
    chain: Chain | None = None


def alone(node: ir.Node) -> Fusion:
    """Fuse `node` with the rest of its layer: the Add of a product's bias, or a kept BatchNormalization."""
    part = linear.bias_behind(node) or batchnorm.kept_behind(node)
    value = node.outputs[0] if part is None else part.outputs[0]
    return Fusion(value, value, () if part is None else (part,))


def behind(node: ir.Node, backend: Backend) -> Fusion:
    """The longest chain of `backend` that starts at `node`; the result of :func:`alone` if there is none."""
    best = alone(node)
    for chain in backend.fused:
        found = _match_chain(node, chain)
        if found is not None and len(found.members) > len(best.members):
            best = found
    return best


def _match_chain(node: ir.Node, chain: Chain) -> Fusion | None:
    """Return the fusion that begins at `node` where all steps of `chain` follow and nothing else reads between them."""
    if node.op_type not in chain.chain[0]:
        return None
    start = alone(node)
    value, members, redundant = start.output, list(start.members), list[RedundantClip]()
    for step in chain.chain[1:]:
        while (gone := _removed_behind(value)) is not None:
            members.append(gone)
            value = gone.outputs[0]
        silu = silu_behind(value) if "Silu" in step else None
        if silu is not None:
            members.extend(silu)
            value = silu[-1].outputs[0]
            continue
        scale = _scale_behind(value) if "Scale" in step else None
        if scale is not None:
            members.append(scale)
            value = scale.outputs[0]
            continue
        users = value.consumers()
        if (
            value.is_graph_output()
            or len(users) != 1
            or users[0].graph is not node.graph
            or users[0].op_type not in step
            or users[0].inputs[0] is not value
        ):
            return None
        if chain.when == "clip_is_redundant":
            bounds = clip_bounds(users[0])
            if bounds is None:
                return None
            redundant.append(RedundantClip(str(value.name), str(users[0].outputs[0].name), *bounds))
        members.append(users[0])
        value = users[0].outputs[0]
    return Fusion(start.output, value, tuple(members), tuple(redundant), chain)


def _removed_behind(value: ir.Value) -> ir.Node | None:
    """The only consumer of `value`, if every compiler removes it and so can fuse the nodes on both sides."""
    users = value.consumers()
    if value.is_graph_output() or len(users) != 1 or users[0].graph is not value.graph:
        return None
    return users[0] if data_movement.is_removed(users[0]) else None


def clip_bounds(node: ir.Node) -> tuple[float, float] | None:
    """Range that a Relu or Clip lets through, or None where it is not constant."""
    if node.op_type == "Relu":
        return 0.0, math.inf
    if node.op_type != "Clip":
        return None
    bounds = [-math.inf, math.inf]
    for index, name in ((1, "min"), (2, "max")):
        value = query.input_at(node, index)
        if value is not None:
            array = query.constant_array(value)
            if array is None:
                return None
            bounds[index - 1] = float(np.asarray(array).reshape(()))
        elif name in node.attributes:
            bounds[index - 1] = float(query.attribute(node, name, 0.0))
    return bounds[0], bounds[1]


def silu_behind(value: ir.Value) -> tuple[ir.Node, ir.Node] | None:
    """``Sigmoid`` and ``Mul`` of ``x * sigmoid(x)`` where they are the only consumers of `value`, else None."""
    users = value.consumers()
    if value.is_graph_output() or len(users) != 2:
        return None
    users = [n for n in users if n.graph is value.graph]
    sigmoid = next((n for n in users if n.op_type == "Sigmoid"), None)
    product = next((n for n in users if n.op_type == "Mul"), None)
    if sigmoid is None or product is None:
        return None
    gate = sigmoid.outputs[0]
    if gate.is_graph_output() or (gate.consumers() != (product,) and list(gate.consumers()) != [product]):
        return None
    return sigmoid, product


def _scale_behind(value: ir.Value) -> ir.Node | None:
    """The only consumer of `value`, if it is a Mul by a constant, such as one factor per channel."""
    users = [n for n in value.consumers() if n.graph is value.graph]
    if value.is_graph_output() or len(value.consumers()) != 1 or not users or users[0].op_type != "Mul":
        return None
    others = [v for v in users[0].inputs if v is not value]
    return users[0] if len(others) == 1 and query.constant_tensor(others[0]) is not None else None


def useful_range(value: ir.Value) -> tuple[float, float] | None:
    """Range outside of which every consumer of `value` saturates to less than an 8-bit step; None without one.

    A SiLU of -8 is -0.003: a convolution's output of -100 in front of it needs no code of its own.
    """
    if value.is_graph_output():
        return None
    if silu_behind(value) is not None:
        return -SATURATED["Sigmoid"], math.inf
    bounds = [_saturation(user) for user in value.consumers()]
    if not bounds or None in bounds:
        return None
    known = [b for b in bounds if b is not None]
    return min(low for low, _ in known), max(high for _, high in known)


def _saturation(node: ir.Node) -> tuple[float, float] | None:
    if node.op_type == "HardSwish":
        return -3.0, math.inf
    if node.op_type == "HardSigmoid":
        alpha, beta = float(query.attribute(node, "alpha", 0.2)), float(query.attribute(node, "beta", 0.5))
        return (-beta / alpha * _MARGIN, (1 - beta) / alpha * _MARGIN) if alpha > 0 else None
    limit = SATURATED.get(node.op_type)
    return None if limit is None else (-limit, limit)
