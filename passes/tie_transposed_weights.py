"""A matrix that is read as it is and transposed stays one constant, such as the table of words of a language model."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from onnxqat.graph import build, linear, query, walk
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log, drop_unused
from onnxqat.passes._gemm_layer import GemmLayer


class TieTransposedWeights(Pass):
    """A MatMul with the transpose of a constant that something else reads becomes a Gemm with ``transB`` on the constant.

    Otherwise the transpose would be computed and stored, trained and quantized as a second weight.

    1. ``MatMul(x, Transpose(w))``, where `w` has another reader, and the Add of a constant row behind it.
    2. ``MatMul(x, v)``, where `v` has the numbers of the transpose of a table that a Gather reads: torch's older
       exporter has computed the transpose.
    3. More axes than two go through Reshapes, as those of ``matmul-bias-to-gemm``.
    4. Left alone: an input of one axis or an unknown number of them, a transpose that other operators read, and `v` of
       one number throughout, which need not be a copy.

    Tolerance: float rounding, 1e-6 of the output's range. ::

        e = Gather(w, ids)   t = Transpose(w)   y = MatMul(x, t)
        e = Gather(w, ids)   y = Gemm <transB = 1> (x, w)
    """

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Tie; see the class."""
        log, stamp = Log(), {build.CREATED_BY: self.name}
        for scope in walk.scopes(model):
            rows: dict[ir.Value, ir.Value] = {}
            for product, table in list(_tied(scope)):
                spent = product.inputs[1]
                added = linear.bias_behind(product, table)
                GemmLayer(scope, context.names, product, added, stamp, table).join(rows)
                _drop(scope, spent)
                log.did("a weight that is read transposed too stays one constant", product)
        return log.result()


def _tied(scope: walk.Scope) -> Iterator[tuple[ir.Node, ir.Value]]:
    """Each MatMul that reads the transpose of a constant which others read, with that constant."""
    tables = {n.inputs[0]: n for n in scope if n.op_type == "Gather" and not n.domain and _is_matrix(n.inputs[0])}
    for node in scope:
        if node.op_type != "MatMul" or node.domain or query.rank(node.inputs[0]) in (None, 0, 1):
            continue
        matrix = node.inputs[1]
        if matrix is None or query.constant_tensor(node.inputs[0]) is not None:
            continue
        table = _transposed(matrix, scope) or next((t for t in tables if _is_transpose(matrix, t)), None)
        if table is not None:
            yield node, table


def _is_matrix(value: ir.Value | None) -> bool:
    found = query.constant_tensor(value)
    return found is not None and len(found.shape) == 2 and found.dtype == ir.DataType.FLOAT


def _transposed(matrix: ir.Value, scope: walk.Scope) -> ir.Value | None:
    """The constant that `matrix` is the transpose of, where products alone read it and the constant has another reader."""
    producer = matrix.producer()
    if producer is None or producer.op_type != "Transpose" or producer.domain or walk.scope_of(producer) is not scope:
        return None
    source = producer.inputs[0]
    if source is None or not _is_matrix(source) or list(query.attribute(producer, "perm", [1, 0])) != [1, 0]:
        return None
    products = all(u.op_type == "MatMul" and i == 1 and not u.domain for u, i in matrix.uses())
    return source if products and not matrix.is_graph_output() and query.reads(source) > 1 else None


def _is_transpose(matrix: ir.Value, table: ir.Value | None) -> bool:
    stored, known = query.constant_tensor(matrix), query.constant_tensor(table)
    if stored is None or known is None or stored.dtype != known.dtype:
        return False
    if stored.shape.numpy() != known.shape.numpy()[::-1]:
        return False
    array = stored.numpy()
    return bool((array != array.reshape(-1)[:1]).any()) and np.array_equal(array.T, known.numpy())


def _drop(scope: walk.Scope, spent: ir.Value | None) -> None:
    """Remove the transpose, or the copy, once nothing reads it."""
    producer = query.producer(spent)
    if spent is not None and producer is not None and producer.op_type == "Transpose":
        if not query.reads(spent):
            scope.remove(producer, safe=True)
    else:
        drop_unused(spent)
