"""Linear layers on rows as 1 x 1 convolutions, since RKNN-Toolkit2 does not end on products of three axes."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from onnxqat.deployment.workarounds import pair, stored_weight
from onnxqat.graph import build, edit, query, walk
from onnxqat.graph.qdq import DEQUANTIZE, QUANTIZE
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log

SWAPPED = (0, 2, 1, 3)  # channels and rows of (1, rows, channels, 1)


class RknnLinearLayers(Pass):
    """A MatMul with a stored matrix, or a Gemm, of more than one row becomes a Conv over (1, channels, rows, 1).

    The toolkit (seen with 2.5.0) brings every tensor to four axes. Where a product reads rows of three axes, or a Gemm
    what a Reshape made of them, three of its own rules (``unsqueeze_to_4d_transpose``, ``swap_reshape_transpose_v2`` and
    ``bypass_two_reshape``) undo each other for ever; it makes convolutions of these layers in any case.

    1. Reshape and Transpose in front of and behind the Conv have a pair of the same parameters each: no code changes.
    2. The node keeps its name, its result its parameters, a Relu or Clip behind it its place.
    3. Left alone: one row, sizes that are not known, a matrix of other than two axes, Gemm with alpha, beta or transA.

    Tolerance: float rounding, 1e-6 of the output's range. ::

        y = MatMul(x, w)                                        # x (1, 8, 16), w (16, 32)
        r = Reshape(x, (1, 8, 16, 1))  t = Transpose(r)  c = Conv(t, w')  u = Transpose(c)  y = Reshape(u, (1, 8, 32))
    """

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Make the convolutions; see the class."""
        log = Log()
        for scope, node in walk.nodes_to_edit(model):
            shape = _rows(node)
            kernel = None if shape is None else _kernel(scope, node, context.names)
            if shape is not None and kernel is not None:
                _convolve(scope, node, shape, kernel, context.names)
                log.did(f"a {node.op_type} of rows became a Conv of 1 x 1", node)
        if log.changed:
            edit.remove_unused(model)
        return log.result()


def _rows(node: ir.Node) -> tuple[int, ...] | None:
    """Shape of what `node` reads; None where it stays as it is."""
    if node.op_type not in ("MatMul", "Gemm") or node.domain or len(node.inputs) < 2:
        return None
    if any(
        query.attribute(node, name, default) != default
        for name, default in (("alpha", 1.0), ("beta", 1.0), ("transA", 0))
    ):
        return None
    shape = query.static_shape(node.inputs[0])
    return shape if shape is not None and len(shape) > 1 and math.prod(shape[:-1]) > 1 else None


def _kernel(scope: walk.Scope, node: ir.Node, names: build.Names) -> ir.Value | None:
    """The matrix of `node` as weight of a Conv, (outputs, inputs, 1, 1); None where it is not stored with two axes."""
    weight = stored_weight.of(node.inputs[1])
    if weight is None or weight.array.ndim != 2:
        return None
    turned = not query.attribute(node, "transB", 0)
    if weight.axis is not None and (weight.axis == 1) != turned:
        return None  # a scale for each input, which a convolution has not
    kernel = (weight.array.T if turned else weight.array)[:, :, np.newaxis, np.newaxis]
    return stored_weight.arranged(scope, node, weight, kernel, None if weight.axis is None else 0, names)


def _convolve(scope: walk.Scope, node: ir.Node, shape: tuple[int, ...], kernel: ir.Value, names: build.Names) -> None:
    """Put the Conv in the place of `node`, and move its result back behind what requantizes it."""
    rows, channels = math.prod(shape[:-1]), shape[-1]
    width = (query.static_shape(kernel) or (0,))[0]
    base, source = str(node.outputs[0].name), node.inputs[0]
    assert source is not None
    like = pair.dequantize_of(source)
    moved = _moved(scope, node, source, (1, rows, channels, 1), like, names, base)
    moved = _moved(scope, node, moved, None, like, names, base)
    bias = [v for v in node.inputs[2:] if v is not None]
    made = build.node(
        "Conv",
        [moved, kernel, *bias],
        [names.fresh(f"{base}_convolved")],
        {"kernel_shape": [1, 1]},
        dtype=ir.DataType.FLOAT,
        shape=ir.Shape([1, width, rows, 1]),
        name=node.name,
    )
    scope.insert_before(node, made)
    node.outputs[0].replace_all_uses_with(made.outputs[0], replace_graph_outputs=True)
    last = _behind(made)
    for one in _line(made, last):
        one.outputs[0].shape = ir.Shape([1, width, rows, 1])
    result = last.outputs[0]
    readers = list(result.uses())
    marker = build.node("Identity", [result], [names.fresh(f"{base}_marker")])  # what is new goes in front of it
    scope.insert_after(last, marker)
    quantizer = last if last.op_type == DEQUANTIZE else None
    back = _moved(scope, marker, result, None, quantizer, names, base)
    back = _moved(scope, marker, back, (*shape[:-1], width), quantizer, names, base)
    scope.remove([marker, node], safe=True)
    for user, index in readers:
        user.replace_input_with(index, back)
    for index, value in enumerate(scope.outputs):
        if value is result:
            scope.outputs[index] = back
            name = base if last is made else str(result.name)
            node.outputs[0].name, result.name, back.name = None, names.fresh(f"{name}_rows"), name


def _behind(node: ir.Node) -> ir.Node:
    """The last of a Relu or Clip, and the pair, that alone read `node`, one after the other."""
    while True:
        value = node.outputs[0]
        users = [user for user, _ in value.uses()]
        if value.is_graph_output() or len(users) != 1 or users[0].op_type not in ("Relu", "Clip", QUANTIZE, DEQUANTIZE):
            return node
        if node.op_type == DEQUANTIZE or users[0].domain or users[0].graph is not node.graph:
            return node
        node = users[0]


def _line(first: ir.Node, last: ir.Node) -> list[ir.Node]:
    """The nodes from `first` to `last`."""
    found = [first]
    while found[-1] is not last:
        found.append(found[-1].outputs[0].consumers()[0])
    return found


def _moved(
    scope: walk.Scope,
    before: ir.Node,
    value: ir.Value,
    sizes: tuple[int, ...] | None,
    like: ir.Node | None,
    names: build.Names,
    base: str,
) -> ir.Value:
    """`value` in the shape `sizes`, or with channels and rows swapped; behind a pair as of `like`."""
    name = names.fresh(f"{base}_{'swapped' if sizes is None else 'shaped'}")
    if sizes is None:
        old = query.static_shape(value)
        sizes = (old[0], old[2], old[1], old[3]) if old is not None else ()
        made = build.node("Transpose", [value], [name], {"perm": SWAPPED}, dtype=value.dtype, name=name)
    else:
        shape = build.constant(scope, names.fresh(f"{name}_sizes"), np.asarray(sizes, np.int64), before=before)
        made = build.node("Reshape", [value, shape], [name], dtype=value.dtype, name=name)
    made.outputs[0].shape = ir.Shape(sizes)
    scope.insert_before(before, made)
    return made.outputs[0] if like is None else pair.insert(scope, before, made.outputs[0], like, names, name)
