"""A Transpose behind the quantizer of a weight goes into the stored weight."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxqat.graph import build, edit, qdq, query, walk
from onnxqat.graph.quantizer import Quantizer
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log, drop_unused


class FoldWeightTranspose(Pass):
    """The constant of a quantized weight is stored as its Transpose gives it; the axis of its scales moves along.

    1. Stored integers -> DequantizeLinear -> Transpose, and a float constant -> QuantizeLinear (-> Clip) ->
       DequantizeLinear -> Transpose: the constant becomes ``<name>_transposed``, and the Transpose goes.
    2. Several Transposes of one weight go where all of them are the same.
    3. Left alone, with the reason: a weight that something else reads too, scales in blocks, a result that leaves the
       graph.

    Compilers look for a weight right behind its DequantizeLinear.

    Tolerance: none. ::

        d = DequantizeLinear <axis = 0> (w, s, z)   t = Transpose <perm = [1, 0]> (d)   y = MatMul(x, t)
        d = DequantizeLinear <axis = 1> (w_transposed, s, z)   y = MatMul(x, d)
    """

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Fold; see the class."""
        log = Log()
        for quantizer in qdq.quantizers(model, every=True):
            users = quantizer.readers
            if quantizer.role != "weight" or not any(_is_transpose(node) for node in users):
                continue
            reason = _refusal(quantizer, users)
            if reason:
                log.left(f"the Transpose of a weight stays: {reason}", *(n for n in users if _is_transpose(n)))
                continue
            log.did("the Transpose of a weight went into the stored weight", *users)
            _fold(quantizer, users, context.names)
        return log.result()


def _is_transpose(node: ir.Node) -> bool:
    return node.op_type == "Transpose" and not node.domain


def _perm(node: ir.Node, rank: int) -> tuple[int, ...]:
    return tuple(query.attribute(node, "perm", None) or range(rank - 1, -1, -1))


def _refusal(quantizer: Quantizer, users: list[ir.Node]) -> str:
    array = query.constant_array(quantizer.input)
    if array is None:
        return "it is computed"
    if quantizer.qparams.block_size:
        return "its scales are in blocks"
    if not all(_is_transpose(node) for node in users) or len({_perm(node, array.ndim) for node in users}) != 1:
        return "something else reads the weight too"
    inner = [*walk.outputs(quantizer.nodes), *(n.outputs[0] for n in users)]
    if any(value.is_graph_output() for value in (quantizer.input, *inner)):
        return "a result of it leaves the graph"
    if any(reader not in quantizer.nodes for reader in quantizer.input.consumers()):
        return "something else reads the weight too"
    return ""


def _fold(quantizer: Quantizer, users: list[ir.Node], names: build.Names) -> None:
    """Store the weight transposed, with its quantizer's axis moved, and drop the Transposes behind it."""
    old, first = quantizer.input, quantizer.nodes[0]
    array, tensor = query.constant_array(old), query.constant_tensor(old)
    assert array is not None
    assert tensor is not None
    perm = _perm(users[0], array.ndim)
    values = np.ascontiguousarray(np.transpose(array, perm))
    name = names.fresh(f"{old.name}_transposed")
    made = build.constant(walk.scope_of(first), name, values, tensor.dtype, before=first)
    for node, index in list(old.uses()):
        node.replace_input_with(index, made)
    drop_unused(old)
    for node in quantizer.nodes:
        if quantizer.qparams.axis is not None and node is not quantizer.clip:
            node.attributes["axis"] = ir.AttrInt64("axis", perm.index(quantizer.qparams.axis))
        for value in node.outputs:
            value.shape = ir.Shape(values.shape) if value.shape is not None else None
    for node in users:
        source = node.inputs[0]
        assert source is not None
        edit.bypass(node, source)
