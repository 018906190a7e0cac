"""A Gemm as MatMul and Add, for targets that have the product alone on integers."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxqat.graph import build, query, walk
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log, exchange_constant, replace
from onnxqat.passes._selective import SelectivePass
from onnxqat.passes._setting import Setting


class GemmToMatmul(SelectivePass):
    """A Gemm with a constant weight becomes the MatMul with it and the Add of its bias.

    onnxruntime has a kernel for activations that are quantized when the model runs of the MatMul alone.

    1. With ``transB`` the weight is stored transposed, as ``<weight>_transposed`` where others read it too.
    2. The MatMul keeps the name of the node, the result that of the Gemm.
    3. Left alone, with the reason: transA, alpha and beta, a weight that is computed, nodes that the user took out.

    Tolerance: float rounding, 1e-6 of the output's range. ::

        y = Gemm(x, w, b)
        y_product = MatMul(x, w)   y = Add(y_product, b)
    """

    @classmethod
    def for_backend(cls, setting: Setting) -> Pass | None:
        """Run for tables whose activations are quantized when the model runs."""
        return cls(setting) if setting.table.dynamic_activations else None

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Split; see the class."""
        log, stamp = Log(), {build.CREATED_BY: self.name}
        for scope, node in walk.nodes_to_edit(model):
            if node.op_type != "Gemm" or node.domain or self.stays_float(node):
                continue
            reason = _refusal(node)
            if reason:
                log.left(f"a Gemm stays, and computes in float: {reason}", node)
                continue
            _split(scope, node, context.names, stamp)
            log.did("Gemm became MatMul and Add", node)
        return log.result()


def _refusal(node: ir.Node) -> str:
    if any(query.attribute(node, *default) != default[1] for default in (("transA", 0), ("alpha", 1.0), ("beta", 1.0))):
        return "it has transA, alpha or beta"
    return "" if query.constant_tensor(node.inputs[1]) is not None else "its weight is computed"


def _split(scope: walk.Scope, node: ir.Node, names: build.Names, stamp: dict[str, str]) -> None:
    """Replace Gemm by MatMul, which keeps its name, and an Add where there is a bias."""
    if query.attribute(node, "transB", 0):
        array = query.constant_array(node.inputs[1])
        assert array is not None
        exchange_constant(scope, node, 1, np.ascontiguousarray(array.T), names, "transposed")
    output, bias = node.outputs[0], query.input_at(node, 2)
    name, label = str(output.name), node.name or ""
    output.name = None
    first = name if bias is None else names.fresh(f"{name}_product")
    dtype, shape = output.dtype, output.shape
    last = build.node("MatMul", list(node.inputs[:2]), [first], name=label, stamp=stamp, dtype=dtype, shape=shape)
    last.metadata_props.update(node.metadata_props)
    scope.insert_before(node, last)
    if bias is not None:
        last = build.node(
            "Add",
            [last.outputs[0], bias],
            [name],
            name=names.fresh(f"{name}_Add"),
            stamp=stamp,
            dtype=dtype,
            shape=shape,
        )
        scope.insert_before(node, last)
    replace(node, last.outputs[0])
