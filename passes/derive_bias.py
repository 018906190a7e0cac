"""Put biases on the grid of their node's accumulator: scale = activation scale x weight scale, zero point 0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import onnx_ir as ir

from onnxqat import numerics
from onnxqat.graph import build, data_movement, edit, qdq, query, walk
from onnxqat.graph.quantizer import Quantizer
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._setting import Setting
from onnxqat.types import BiasPlacement, QParams


class DeriveBias(Pass):
    """The float bias of a Conv, ConvTranspose or Gemm with quantized activation and weight goes to the int32 grid.

    1. ``int32``: the bias becomes constant ``<bias>_quantized`` (int32) and a DequantizeLinear with scale
       ``<bias>_scale``, the float32 product of the two scales, and zero point 0.
    2. ``float``: the values are rounded to the same grid and stay a float constant, for compilers that refuse int32.
       A constant that others read too is copied first.
    3. Left alone: nodes whose activation or weight is not quantized, biases that are computed, or already derived.

    Changes the function by at most half an accumulator step a channel. onnxruntime's default session does the same
    conversion by itself; doing it here makes every session, and training, compute the same.

    Before::

        y = Conv(x_DequantizeLinear_Output, w_DequantizeLinear_Output, b)

    After::

        b_DequantizeLinear_Output = DequantizeLinear(b_quantized, b_scale, b_zero_point)
        y = Conv(x_DequantizeLinear_Output, w_DequantizeLinear_Output, b_DequantizeLinear_Output)
    """

    def __init__(self, biases: Sequence[BiasPlacement]) -> None:
        self.biases = tuple(biases)

    @classmethod
    def for_backend(cls, setting: Setting) -> Pass | None:
        """Derive the biases of `setting`."""
        return cls(setting.biases)

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        nodes = {str(n.name): n for n in walk.nodes(model) if n.name}
        readable = data_movement.carried(qdq.quantizers(model))
        changed = False
        for placement in self.biases:
            changed |= put_on_grid(nodes[placement.node], readable, placement.storage, placement.rule, context.names)
        if not changed:
            return Rewrite(False)
        edit.remove_unused(model)
        return Rewrite(True)


def put_on_grid(
    node: ir.Node,
    readable: Mapping[int, Quantizer],
    storage: Literal["int32", "float"],
    rule: str,
    names: build.Names,
) -> bool:
    """Put the bias of one node on its accumulator's grid; whether that changed anything.

    Args:
        node: Conv, ConvTranspose or Gemm.
        readable: what :func:`onnxqat.graph.data_movement.carried` gives, the quantizers of `node` among them.
        storage: as of :class:`onnxqat.types.BiasPlacement`.
        rule: for the new node's metadata.
        names: fresh names.
    """
    bias = query.input_at(node, 2)
    values = query.constant_array(bias)
    sources = [readable.get(id(node.inputs[i])) for i in (0, 1)]
    if bias is None or values is None or sources[0] is None or sources[1] is None:
        return False
    qparams = qdq.accumulator(sources[0].qparams, sources[1].qparams, values.size)
    if storage == "float":
        return _snap(node, bias, values, qparams, names)
    scope = walk.scope_of(node)
    parameters = qdq.make_parameters(scope, names, str(bias.name), qparams)
    stamp = {build.CREATED_BY: DeriveBias.name, build.RULE: rule}
    codes = numerics.quantize(values, qparams)
    output = qdq.insert_stored(bias, codes, parameters, qparams, names, stamp, scope=scope, before=node)
    node.replace_input_with(2, output)
    return True


def _snap(node: ir.Node, bias: ir.Value, values: np.ndarray, qparams: QParams, names: build.Names) -> bool:
    snapped = numerics.fake_quantize(values, qparams)
    if np.array_equal(snapped, values) and qdq.BIAS_GRID in node.metadata_props:
        return False
    node.metadata_props[qdq.BIAS_GRID] = "in0*in1"
    scope = walk.scope_of(node)
    read_by_others = query.reads(bias) > 1 or bias.is_graph_output()
    if read_by_others or bias.producer() is not None or bias.graph is not scope:
        node.replace_input_with(2, build.constant(scope, names.fresh(str(bias.name)), snapped, before=node))
    else:
        bias.const_value = build.tensor(snapped, name=bias.name)
    return True
