"""Sums and products of six axes on fewer, since RKNN-Toolkit2 fails on them or leaves them to the CPU."""

from __future__ import annotations

import math

import onnx_ir as ir

from onnxqat.deployment.workarounds import pair, reshape, stored_weight
from onnxqat.graph import build, edit, query, walk
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log

OPERATORS = ("Add", "Sub", "Mul", "Div")
FEWEST = 6
"""Axes from which on the toolkit fails; seen with 2.5.0: 5 are taken."""

Shape = tuple[int, ...]


class RknnSixAxes(Pass):
    """An Add, Sub, Mul or Div of six axes and more works on neighbouring axes as one.

    The toolkit (seen with 2.5.0) brings them to four axes by rules such as ``squeeze_nd_mul``, which end with an
    AttributeError where an operand is stored. Without these rules, which the hand-off disables, six axes are left to the CPU.
    Offsets of deformable attention have six.

    1. Axes are one where each operand has one value for all of them, or one for each.
    2. A Reshape in front has a pair of the same parameters; the one behind stands in front of what reads the result.
    3. Left alone: sizes that are not known, a stored operand with scales along an axis, and operands that need six axes.

    Tolerance: none. ::

        y = Mul(x, c)                                              # x (1, 20, 4, 2, 2, 2), c (2)
        r = Reshape(x, (320, 2))  p = Mul(r, c')  y = Reshape(p, (1, 20, 4, 2, 2, 2))           # c' (1, 2)
    """

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Make axes one; see the class."""
        log = Log()
        for scope, node in walk.nodes_to_edit(model):
            shapes = _merged(node)
            if shapes is not None:
                _flatten(scope, node, shapes, context.names)
                log.did(f"{node.op_type} of six axes and more works on fewer", node)
        if log.changed:
            edit.remove_unused(model)
        return log.result()


def _merged(node: ir.Node) -> list[Shape] | None:
    """Shapes of the operands of `node`, neighbouring axes as one; None where it stays as it is."""
    shape = query.static_shape(node.outputs[0]) if node.op_type in OPERATORS and not node.domain else None
    found = [query.static_shape(value) for value in node.inputs]
    given = [one for one in found if one is not None]
    if shape is None or len(shape) < FEWEST or len(given) < len(found):
        return None
    if any(held is not None and held.axis is not None for held in map(stored_weight.of, node.inputs)):
        return None
    aligned = [(1,) * (len(shape) - len(one)) + one for one in given]
    runs: list[tuple[tuple[bool, ...], list[int]]] = []  # which operands repeat a value, and the axes
    for axis, size in enumerate(shape):
        repeats = tuple(one[axis] != size for one in aligned)
        if runs and (size == 1 or repeats == runs[-1][0]):
            runs[-1][1].append(axis)
        elif runs and all(shape[other] == 1 for other in runs[-1][1]):
            runs[-1] = (repeats, [*runs[-1][1], axis])
        else:
            runs.append((repeats, [axis]))
    if len(runs) >= FEWEST:
        return None
    return [tuple(math.prod(one[axis] for axis in axes) for _, axes in runs) for one in aligned]


def _flatten(scope: walk.Scope, node: ir.Node, shapes: list[Shape], names: build.Names) -> None:
    """Put Reshapes around `node`."""
    output = node.outputs[0]
    base = str(output.name)
    operands = []
    for value, sizes in zip(node.inputs, shapes, strict=True):
        assert value is not None
        stored, like = stored_weight.of(value), pair.dequantize_of(value)
        if stored is not None:
            array = stored.array.reshape(sizes)
            operands.append(stored_weight.arranged(scope, node, stored, array, None, names))
            continue
        flat = reshape.insert(scope, node, value, sizes, names, f"{base}_flat")
        operands.append(flat if like is None else pair.insert(scope, node, flat, like, names, str(flat.name)))
    whole = tuple(max(sizes) for sizes in zip(*shapes, strict=True))
    made = build.node(
        node.op_type,
        operands,
        [names.fresh(f"{base}_flat")],
        dtype=output.dtype,
        shape=ir.Shape(whole),
        name=node.name,
    )
    scope.insert_before(node, made)
    back = reshape.insert(scope, node, made.outputs[0], query.static_shape(output) or (), names, base)
    output.replace_all_uses_with(back, replace_graph_outputs=True)
    scope.remove(node, safe=True)
    output.name, back.name = None, base
