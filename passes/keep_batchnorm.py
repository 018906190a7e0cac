"""BatchNormalization kept behind its layer, in the form that folds into quantized weights."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from onnxqat import numerics
from onnxqat.graph import batchnorm, build, query, walk
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._batchnorm import affine, layer_bias
from onnxqat.passes._batchnorm_parts import NOTE
from onnxqat.passes._edits import Log, drop_unused, exchange_constant, is_private
from onnxqat.placement.tensor_specs import output_axis


class KeepBatchnorm(Pass):
    """A BatchNormalization behind a layer stays, so that it can be trained; fold-quantized-batchnorm ends that.

    Run it in front of fold-batchnorm, which leaves alone what has the note ``onnxqat.batch_norm``.

    1. Conv, ConvTranspose, Gemm, and MatMul of two matrices, with a constant weight that nothing else reads.
    2. A negative gamma becomes positive: the channel's weights, bias and mean change their signs with it. The integer
       codes of a channel with a negative gamma change theirs when it is folded, and -8..7 has no code 8.
    3. A bias in front goes into the mean: the normalization takes away what a bias adds, and runtimes would quantize it.
    4. Parameters that other nodes read, or that are one constant in two places, are copied: each is trained alone.
    5. Left to fold-batchnorm, with the reason: whatever `refusal` speaks against, computed parameters, weights that
       other nodes read, a bias of a Gemm that is no row, and what fold-batchnorm would leave alone.

    Tolerance: float rounding, 1e-5 of the output's range. ::

        c = Conv(x, w, b)   y = BatchNormalization(c, gamma, beta, mean, variance)
        c = Conv(x, w)      y = BatchNormalization(c, gamma, beta, mean - b, variance)

    Args:
        refusal: why the normalization behind a layer is not to be kept; None where it is.
    """

    def __init__(self, refusal: Callable[[ir.Node], str | None] | None = None) -> None:
        self.refusal = refusal or (lambda _: None)

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Note the nodes that are kept; see the class."""
        log = Log()
        for scope, node in walk.nodes_to_edit(model):
            layer = batchnorm.layer(node) if batchnorm.is_batchnorm(node) else None
            if layer is None or batchnorm.is_kept(node) or NOTE in layer.meta:
                continue
            reason = self.refusal(layer) or _reason(layer, node)
            if reason is not None:
                log.left(f"BatchNormalization is not kept: {reason}", node)
                continue
            _settle(scope, layer, node, context.names)
            node.metadata_props[batchnorm.KEPT] = "kept"
            node.metadata_props[build.CREATED_BY] = self.name
            node.metadata_props[build.LEFT_FLOAT] = "kept for training; it folds into the scales of the weight"
            log.did("BatchNormalization is kept behind its layer, to be folded when the weights are final", node)
        return log.result()


def _reason(layer: ir.Node, node: ir.Node) -> str | None:
    function, weight = affine(node), query.constant_tensor(layer.inputs[1])
    if isinstance(function, str):
        return function
    if weight is None or weight.dtype != ir.DataType.FLOAT or not is_private(layer.inputs[1]):  # type: ignore[arg-type]
        return "the weight is computed, read elsewhere or not float32"
    if layer.op_type == "MatMul" and (len(weight.shape) != 2 or query.rank(layer.inputs[0]) != 2):
        return "its channels are not the columns of a matrix, or ranks are unknown"
    if layer.op_type == "ConvTranspose" and query.attribute(layer, "group", 1) != 1:
        return "groups of a ConvTranspose share the channels of its weight"
    if function.factor.shape != (weight.shape.numpy()[output_axis(layer)],):
        return "it has another number of channels than the layer"
    return (
        None if layer_bias(layer, function.factor.size) is not None else "the bias of the layer is computed or no row"
    )


def _settle(scope: walk.Scope, layer: ir.Node, node: ir.Node, names: build.Names) -> None:
    gamma, beta, mean, variance = (np.asarray(query.constant_array(v)) for v in node.inputs[1:5])
    bias = layer_bias(layer, gamma.size)
    assert bias is not None
    sign = np.where(gamma < 0, -1.0, 1.0)
    if (sign < 0).any():
        weight = np.asarray(query.constant_array(layer.inputs[1]))
        axis = output_axis(layer) % weight.ndim
        exchange_constant(scope, layer, 1, weight * numerics.along_axis(sign, axis, weight.ndim), names, "kept")
    if query.input_at(layer, 2) is not None:
        spent = layer.inputs[2]
        layer.replace_input_with(2, None)
        layer.resize_inputs(2)
        layer.attributes.pop("beta", None)
        drop_unused(spent)
    settled = (np.abs(gamma), beta, (mean.astype(np.float64) - bias) * sign, variance)
    for index, array in enumerate(settled, 1):
        exchange_constant(scope, node, index, array, names, "kept")
