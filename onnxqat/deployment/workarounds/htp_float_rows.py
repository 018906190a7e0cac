"""Float linear layers on rows as products and sums of all axes, since QNN's fusion of them with a Reshape fails."""

from __future__ import annotations

import functools
import math

import numpy as np
import onnx_ir as ir

from onnxqat.deployment.workarounds import pair, reshape
from onnxqat.graph import build, edit, query, walk
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log

PLAIN = (("alpha", 1.0), ("beta", 1.0), ("transA", 0), ("transB", 0))


class HtpFloatRows(Pass):
    """A float Gemm behind a Reshape to rows, or a float MatMul with a bias, is a MatMul and an Add of all axes.

    onnxruntime-qnn fuses such a Gemm with the Reshapes around it, and where a quantizer reads the result it fails as a
    whole: ``QNN.graphAddNode() failed for node ... of type Quantize with error code 6007`` and `Failed to compose Qnn graph`
    (2.7). onnxruntime makes a Gemm between Reshapes of a MatMul and the Add of a bias with one axis, not of a bias with as
    many axes as the result.

    1. The MatMul keeps the layer's name; behind it a Reshape to rows stands where the Gemm's result is read.
    2. Left alone: layers that read a pair; Gemm with alpha, beta, transA or transB; sizes that are not known; a bias that is
       no constant; types other than float32.

    Tolerance: float rounding, 1e-6 of the output's range. ::

        r = Reshape(x, (20, 64))  y = Gemm(r, w, b)                     # x (1, 20, 64), w (64, 32), b (32)
        p = MatMul(x, w)  s = Add(p, b')  y = Reshape(s, (20, 32))      # b' (1, 1, 32)
        p = MatMul(x, w)  y = Add(p, b)
        p = MatMul(x, w)  y = Add(p, b')
    """

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Write the layers anew; see the class."""
        log = Log()
        for scope, node in walk.nodes_to_edit(model):
            if _spread(scope, node, context.names):
                log.did("a float layer on rows became a MatMul and an Add of all axes", node)
            elif _widen(scope, node, context.names):
                log.did("the bias of a float layer has as many axes as its result", node)
        if log.changed:
            edit.remove_unused(model)
        return log.result()


def _spread(scope: walk.Scope, node: ir.Node, names: build.Names) -> bool:
    """Make MatMul, Add and Reshape of `node`, a float Gemm behind a Reshape; False where it is none."""
    if node.op_type != "Gemm" or node.domain or any(query.attribute(node, n, d) != d for n, d in PLAIN):
        return False
    rows = node.inputs[0]
    maker = query.producer(rows)
    if maker is None or maker.op_type != "Reshape" or maker.domain or not _is_float(maker.inputs[0]):
        return False
    source, weight, output = maker.inputs[0], node.inputs[1], node.outputs[0]
    bias = _bias(query.input_at(node, 2))
    sizes, matrix, flat = query.static_shape(source), query.static_shape(weight), query.static_shape(rows)
    if source is None or weight is None or sizes is None or matrix is None or flat is None or bias is None:
        return False
    # Two axes need no Reshape, and a Reshape to other rows moves numbers from one row to another.
    if len(sizes) < 3 or flat != (math.prod(sizes[:-1]), sizes[-1]):
        return False
    shape, base = (*sizes[:-1], matrix[1]), str(output.name)
    make = functools.partial(build.node, dtype=output.dtype, shape=ir.Shape(shape))
    product = make("MatMul", [source, weight], [names.fresh(f"{base}_product")], name=node.name)
    scope.insert_before(node, product)
    result = product.outputs[0]
    if bias.size:
        held = build.constant(scope, names.fresh(f"{base}_bias"), _of_rank(bias, len(shape)), before=node)
        name = names.fresh(f"{base}_sum")
        total = make("Add", [result, held], [name], name=name)
        scope.insert_before(node, total)
        result = total.outputs[0]
    back = reshape.insert(scope, node, result, (flat[0], matrix[1]), names, base)
    output.replace_all_uses_with(back, replace_graph_outputs=True)
    scope.remove(node, safe=True)
    output.name, back.name = None, base
    return True


def _widen(scope: walk.Scope, node: ir.Node, names: build.Names) -> bool:
    """Give the bias that `node`, an Add, adds to a float MatMul of three axes and more all axes; False where it is none."""
    if node.op_type != "Add" or node.domain:
        return False
    for index, value in enumerate(node.inputs):
        maker = query.producer(value)
        rank = query.rank(value)
        other = node.inputs[1 - index]
        array = query.constant_array(other)
        if maker is None or maker.op_type != "MatMul" or maker.domain or not _is_float(maker.inputs[0]):
            continue
        if rank is not None and rank > 2 and array is not None and array.dtype == np.float32 and array.ndim == 1:
            held = build.constant(
                scope, names.fresh(f"{node.outputs[0].name}_bias"), _of_rank(array, rank), before=node
            )
            node.replace_input_with(1 - index, held)
            return True
    return False


def _is_float(value: ir.Value | None) -> bool:
    """Check that `value` is a computed float32 tensor that comes from no pair."""
    if value is None or value.dtype not in (None, ir.DataType.FLOAT) or query.constant_tensor(value) is not None:
        return False
    return pair.dequantize_of(value) is None


def _bias(value: ir.Value | None) -> np.ndarray | None:
    """The values of a bias, none where there is no bias; None where it is computed or has several axes."""
    if value is None:
        return np.zeros(0, np.float32)
    array = query.constant_array(value)
    return array if array is not None and array.dtype == np.float32 and array.ndim == 1 else None


def _of_rank(bias: np.ndarray, rank: int) -> np.ndarray:
    return bias.reshape((1,) * (rank - 1) + (-1,))
