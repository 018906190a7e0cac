"""Transposes and products of three axes computed on four, since RKNN-Toolkit2 does not end on some of them."""

from __future__ import annotations

import onnx_ir as ir

from onnxqat.deployment.workarounds import pair, reshape
from onnxqat.graph import build, query, walk
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log


class RknnFourAxes(Pass):
    """A Transpose or a MatMul of computed tensors with three axes works on four, the first of which is 1.

    The toolkit (seen with 2.5.0) brings every tensor to four axes itself, and its rules for that
    (``unsqueeze_to_4d_transpose``, ``swap_reshape_transpose_v2``, ``bypass_two_reshape``) undo each other for ever where a
    Transpose of three axes meets a Reshape.

    A Reshape in front has a pair of the same parameters; the one behind stands in front of what reads the result. Left
    alone: sizes that are not known, other numbers of axes, constants.

    Tolerance: none. ::

        y = Transpose <perm = [0,2,1]> (x)                                     # x (1, 8, 16)
        r = Reshape(x, (1, 1, 8, 16))  t = Transpose <perm = [0,1,3,2]> (r)  y = Reshape(t, (1, 16, 8))
    """

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Add the axis; see the class."""
        log = Log()
        for scope, node in walk.nodes_to_edit(model):
            if _is_of_three(node):
                _widen(scope, node, context.names)
                log.did(f"a {node.op_type} of three axes works on four", node)
        return log.result()


def _is_of_three(node: ir.Node) -> bool:
    if node.op_type not in ("Transpose", "MatMul") or node.domain:
        return False
    shapes = [query.static_shape(value) for value in (*node.inputs, *node.outputs)]
    constant = any(query.constant_tensor(v) is not None for v in node.inputs)
    return not constant and all(shape is not None and len(shape) == 3 for shape in shapes)


def _widen(scope: walk.Scope, node: ir.Node, names: build.Names) -> None:
    """Put Reshapes around `node`."""
    output = node.outputs[0]
    base = str(output.name)
    for index, value in enumerate(node.inputs):
        shape = query.static_shape(value)
        assert value is not None
        assert shape is not None
        like = pair.dequantize_of(value)
        made = reshape.insert(scope, node, value, (1, *shape), names, f"{base}_wide_{index}")
        node.replace_input_with(
            index, made if like is None else pair.insert(scope, node, made, like, names, str(made.name))
        )
    if node.op_type == "Transpose":
        order = query.attribute(node, "perm", (2, 1, 0))
        node.attributes["perm"] = ir.AttrInt64s("perm", [0, *(axis + 1 for axis in order)])
    shape = query.static_shape(output)
    assert shape is not None
    wide = ir.Value(name=names.fresh(f"{base}_wide"), type=output.type, shape=ir.Shape((1, *shape)))
    moved = build.node(
        node.op_type, list(node.inputs), [str(wide.name)], dtype=output.dtype, shape=wide.shape, name=node.name
    )
    moved.attributes.update(node.attributes)
    scope.insert_before(node, moved)
    back = reshape.insert(scope, node, moved.outputs[0], shape, names, base)
    output.replace_all_uses_with(back, replace_graph_outputs=True)
    scope.remove(node, safe=True)
    output.name, back.name = None, base
