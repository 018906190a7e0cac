"""Arithmetic with a constant per output channel folded into the layer in front of it."""

from __future__ import annotations

from typing import Literal

import numpy as np
import onnx_ir as ir

from onnxqat.analysis import grouped_nodes
from onnxqat.graph import build, query, walk
from onnxqat.passes import _batchnorm_parts, _constant_arithmetic
from onnxqat.passes._affine_folds import FOLDS
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._batchnorm import Affine
from onnxqat.passes._edits import Log, absorb, drop_unused, is_private
from onnxqat.passes._inference import Inferred
from onnxqat.passes._selective import SelectivePass
from onnxqat.passes._setting import Setting


class FoldAffine(SelectivePass):
    """A Mul, Div, Add or Sub with a constant per output channel behind a layer goes into its weight and bias.

    A normalization that an exporter wrote as Mul and Add, a bias behind a convolution, the layer scale of a transformer
    and the factor of a residual branch are parts of the layer: a kernel computes them without rounding in between.

    1. Conv, ConvTranspose and Gemm; MatMul with a constant matrix, and the Add of a row behind it, for any rank.
    2. The constant has one value per output channel, or one for all of them.
    3. The layer's output takes the name of what is folded.
    4. Left alone: an Add behind a MatMul, which is its bias; what is part of a normalization or of another group; a
       factor for a weight that other nodes read; a layer output that something else reads or that is a graph output;
       a layer in another scope; values that overflow the weight's type; nodes of which `selection` says that they
       stay in float.

    Tolerance: float rounding, 1e-5 of the output's range. ::

        c = Conv(x, w)   m = Mul(c, factor)   y = Add(m, offset)
        y = Conv(x, w, conv_bias)                                 # w scaled by factor
    """

    @classmethod
    def for_backend(cls, setting: Setting) -> Pass | None:
        """Run for every table, but where encodings name the weights and tensors of the float file."""
        return None if setting.overrides.encodings else cls(setting)

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Fold what can be folded; see the class."""
        log, inferred = Log(), None
        for scope in walk.scopes(model):
            if not any(_layer(node) for node in scope):
                continue
            inferred = inferred or Inferred(model)
            grouped = grouped_nodes.of(scope)
            for node in list(scope):  # in order: what is folded brings the next node to the layer
                found = None if node in grouped or self.stays_float(node) else _in_layer(node, inferred)
                if found is None:
                    continue
                layer, function = found
                constants = list(node.inputs)
                result = FOLDS[layer.op_type](scope, layer, function, context.names, {build.CREATED_BY: self.name})
                if isinstance(result, ir.Value):
                    _batchnorm_parts.behind(layer, function.factor, function.offset)
                    log.did(f"{node.op_type} with a constant folded into the layer in front of it", node)
                    absorb(node, result)
                    for value in constants:
                        drop_unused(value)
        return log.result()


def _layer(node: ir.Node) -> ir.Node | None:
    """The layer with a constant weight whose output `node` alone reads and changes by a constant, or None."""
    arithmetic = _constant_arithmetic.of(node)
    layer = arithmetic.data.producer() if arithmetic is not None else None
    if arithmetic is None or layer is None or layer.domain or layer.op_type not in FOLDS:
        return None
    if not is_private(arithmetic.data) or layer.graph is not node.graph or query.takes_arguments(layer):
        return None
    if query.constant_tensor(_weight_of(layer)) is None:
        return None
    return None if node.op_type == "Add" and layer.op_type == "MatMul" else layer


def _in_layer(node: ir.Node, inferred: Inferred) -> tuple[ir.Node, Affine] | None:
    """Return the layer in front of `node` and the function per channel that `node` computes of its output, or None."""
    layer, arithmetic = _layer(node), _constant_arithmetic.of(node)
    if layer is None or arithmetic is None:
        return None
    weight = _weight_of(layer)
    rank, array = inferred.rank(arithmetic.data), query.constant_array(weight)
    if weight is None or array is None or array.ndim < 2 or rank is None:
        return None
    channels, axis = _channels(layer, array)
    factor, offset = (_constant_arithmetic.along(part, rank, axis) for part in (arithmetic.factor, arithmetic.offset))
    if factor is None or offset is None or factor.size not in (1, channels):
        return None
    scales = bool((factor != 1.0).any())
    if scales and not is_private(weight):
        return None
    wide = np.ones(channels)
    return layer, Affine(factor * wide, offset * wide, axis)


def _weight_of(layer: ir.Node) -> ir.Value | None:
    """The weight of `layer`; for an Add that of the MatMul in front of it."""
    if layer.op_type != "Add":
        return layer.inputs[1]
    products = (value.producer() for value in layer.inputs if value is not None)
    return next((p.inputs[1] for p in products if p is not None and p.op_type == "MatMul" and not p.domain), None)


def _channels(layer: ir.Node, weight: np.ndarray) -> tuple[int, Literal[1, -1]]:
    """Number of output channels of `layer`, and the axis of its output along which they lie."""
    if layer.op_type == "Conv":
        return weight.shape[0], 1
    if layer.op_type == "ConvTranspose":
        return weight.shape[1] * int(query.attribute(layer, "group", 1)), 1
    if layer.op_type == "Gemm":
        return weight.shape[0 if query.attribute(layer, "transB", 0) else 1], -1
    return weight.shape[-1], -1
