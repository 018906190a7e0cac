"""Activations that are quantized when the model runs, with a scale from the very tensor."""

from __future__ import annotations

import onnx_ir as ir

from onnxqat.graph import build, qdq, query, walk
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log
from onnxqat.passes._setting import Setting


class QuantizeDynamically(Pass):
    """The input of a MatMul with a quantized weight goes through DynamicQuantizeLinear and DequantizeLinear.

    1. One such pair for each tensor and scope, whatever number of products reads it. Its codes are uint8.
    2. Left alone: inputs that carry a quantizer already, constants, products of other operators.

    onnxruntime makes DynamicQuantizeMatMul of both in its default session. The function is changed: that is the purpose. ::

        y = MatMul(x, d)
        x_quantized, x_scale, x_zero_point = DynamicQuantizeLinear(x)
        x_dynamic = DequantizeLinear(x_quantized, x_scale, x_zero_point)   y = MatMul(x_dynamic, d)
    """

    @classmethod
    def for_backend(cls, setting: Setting) -> Pass | None:
        """Run for tables that state `dynamic_activations`."""
        return cls() if setting.table.dynamic_activations else None

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Insert the pairs; see the class."""
        log = Log()
        for scope in walk.scopes(model):
            made: dict[ir.Value, ir.Value] = {}
            for node in list(scope):
                data = node.inputs[0] if node.op_type == "MatMul" and not node.domain else None
                if data is None or not _is_float(data) or not qdq.is_dequantize(query.producer(node.inputs[1])):
                    continue
                if data not in made:
                    made[data] = _insert(scope, node, data, context.names)
                node.replace_input_with(0, made[data])
                log.did("activations are quantized when the model runs", node)
        return log.result()


def _is_float(data: ir.Value) -> bool:
    """Check whether `data` is float32, computed or given, and on no grid."""
    maker = data.producer()
    constant = query.constant_tensor(data) is not None
    return data.dtype == ir.DataType.FLOAT and not constant and not qdq.is_dequantize(maker)


def _insert(scope: walk.Scope, reader: ir.Node, data: ir.Value, names: build.Names) -> ir.Value:
    """Insert DynamicQuantizeLinear and DequantizeLinear on `data` in front of `reader`, and return the result."""
    name, stamp = str(data.name), {build.CREATED_BY: QuantizeDynamically.name}
    codes, scale, zero = (names.fresh(f"{name}_{what}") for what in ("quantized", "scale", "zero_point"))
    quantize = build.node(
        "DynamicQuantizeLinear",
        [data],
        [codes, scale, zero],
        dtype=ir.DataType.UINT8,
        shape=data.shape,
        name=names.fresh(f"{name}_DynamicQuantizeLinear"),
        stamp=stamp,
    )
    quantize.outputs[1].dtype = ir.DataType.FLOAT
    for parameter in quantize.outputs[1:]:
        parameter.shape = ir.Shape([])
    dequantize = build.node(
        "DequantizeLinear",
        list(quantize.outputs),
        [names.fresh(f"{name}_dynamic")],
        dtype=ir.DataType.FLOAT,
        shape=data.shape,
        name=names.fresh(f"{name}_DequantizeLinear"),
        stamp=stamp,
    )
    for node in (quantize, dequantize):
        scope.insert_before(reader, node)
    return dequantize.outputs[0]
