"""The scalars alpha and beta of Gemm folded into its constants, and C made a bias."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxqat.graph import build, query, walk
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log, drop_unused, exchange_constant


class FoldGemmScalars(Pass):
    """Gemm nodes have alpha 1 and beta 1, and a bias of one axis.

    onnxruntime's quantized Gemm treats alpha in another way than its float Gemm does, so a quantized Gemm has none.

    1. alpha is multiplied into a constant B, beta into a constant C, in float64; constants that others read are
       copied first (``<constant>_scaled``).
    2. Without C, or with beta 0, beta and C go.
    3. A constant C of one row or of one value becomes one value a column of the output, (N,), which is what a bias is:
       another C stays float, and the Gemm with it.
    4. Left alone, with the reason: alpha where B is not constant, beta where C is not.

    Tolerance: float rounding, 1e-6 of the output's range. ::

        y = Gemm <alpha = 0.5, beta = 2.0> (x, w, b)
        y = Gemm(x, w, b)                               # w halved, b doubled
    """

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Fold the scalars; see the class."""
        log = Log()
        for scope, node in walk.nodes_to_edit(model):
            if node.op_type == "Gemm" and node.domain == "":
                _fold(scope, node, "alpha", 1, context.names, log)
                _fold(scope, node, "beta", 2, context.names, log)
                _flatten(scope, node, context.names, log)
        return log.result()


def _fold(scope: walk.Scope, node: ir.Node, scalar: str, index: int, names: build.Names, log: Log) -> None:
    """Multiply the constant that `scalar` (alpha or beta) scales by it, and drop the attribute."""
    attribute = node.attributes.get(scalar)
    if attribute is None or (not attribute.is_ref() and float(attribute.value) == 1.0):
        return
    if attribute.is_ref():
        log.left(f"{scalar} of Gemm is an attribute of the function", node)
        return
    factor = float(attribute.value)
    value = query.input_at(node, index)
    if scalar == "beta" and (value is None or factor == 0.0):
        if value is not None:
            node.resize_inputs(2)
            drop_unused(value)
    else:
        array = query.constant_array(value)
        if array is None:
            log.left(f"what {scalar} of Gemm scales is not constant", node)
            return
        exchange_constant(scope, node, index, array.astype(np.float64) * factor, names, "scaled")
    del node.attributes[scalar]
    log.did("alpha and beta of Gemm were folded into its constants", node)


def _flatten(scope: walk.Scope, node: ir.Node, names: build.Names, log: Log) -> None:
    """Let C have one value a column of the output, where it says so in another shape."""
    weight = node.inputs[1]
    attribute = node.attributes.get("transB")
    if len(node.inputs) < 3 or weight is None or (attribute is not None and attribute.is_ref()):
        return
    stored = query.constant_tensor(weight)
    shape = weight.shape if stored is None else stored.shape
    array = query.constant_array(node.inputs[2])
    if array is None or shape is None:
        return
    columns = shape[0 if attribute is not None and attribute.as_int() else -1]
    if not isinstance(columns, int) or array.shape == (columns,):
        return
    if array.size == (columns if array.shape[-1:] == (columns,) else 1):
        flat = np.broadcast_to(array.reshape(-1), (columns,))
        exchange_constant(scope, node, 2, flat, names, "flat")
        log.did("C of Gemm became one value a column of the output", node)
