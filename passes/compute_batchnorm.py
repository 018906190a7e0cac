"""A folded BatchNormalization taken apart again in front of the quantizers of its layer, so that its parts train."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from onnxqat import numerics
from onnxqat.graph import batchnorm, build, folded_batchnorm, qdq, query, walk
from onnxqat.graph.quantizer import Quantizer
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._batchnorm_parts import NOTE, Parts
from onnxqat.passes._edits import Log, drop_unused, is_private
from onnxqat.passes._quantized_weight import drop, overwrite

CLOSE = 1e-5  # relative: the fold is computed in float64, the graph computes in float32
WHY = "computes a folded weight while it is trained; handoff stores the result"


class ComputeBatchnorm(Pass):
    """Compute the folded weight and bias of quantized layers in the graph, from the parts before folding.

    Layers are those at which :func:`~onnxqat.passes._batchnorm_parts.note` has noted the parts, in memory. Their weights and biases have been planned,
    calibrated and quantized in folded form, and are the same after this pass, to float rounding.

    1. The input of the weight's quantizer becomes ``weight * Reshape(gamma / Sqrt(variance + epsilon))``.
    2. The bias becomes ``beta - mean * factor``: in front of its quantizer where it has one, and rounded to the grid
       of the accumulator by ``Round(bias / s) * s``, ``s`` the product of the two scales, where it was on that.
    3. Left folded, with the reason: a weight that is not quantized, or that something changed after folding without its
       parts, such as a splitting of channels; a quantizer in another scope.

    Tolerance: float rounding, 1e-5 of the folded weights, which may take a value to the next code. ::

        y = Conv(x, DQ(Q(folded)), folded_bias)
        factor = gamma / Sqrt(variance + epsilon)
        y = Conv(x, DQ(Q(w * Reshape(factor))), beta - mean * factor)
    """

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Replace folded constants by their computation; see the class."""
        log = Log()
        noted = [(scope, layer) for scope in walk.scopes(model) for layer in scope if NOTE in layer.meta]
        readable = qdq.by_output(qdq.quantizers(model, every=True)) if noted else {}
        for scope, layer in noted:
            parts = layer.meta.pop(NOTE)
            if isinstance(parts, Parts):
                reason = _compute(scope, layer, parts, readable, context.names)
                if reason is None:
                    log.did(
                        "a folded BatchNormalization is computed in front of the quantizers of its layer, so that it trains",
                        layer,
                    )
                else:
                    log.left(f"BatchNormalization is not kept: {reason}", layer)
        return log.result()


def _compute(
    scope: walk.Scope, layer: ir.Node, parts: Parts, readable: dict[int, Quantizer], names: build.Names
) -> str | None:
    """Compute the folded weight and bias in the graph from the layer's own; return the reason where it cannot be.

    They are compared with those that are stored: training of folded weights would be undone.
    """
    weight = readable.get(id(layer.inputs[1]))
    bias = query.input_at(layer, 2)
    if weight is None or bias is None or weight.quantize is None:
        return "the weight of the layer is not quantized"
    if walk.scope_of(weight.quantize) is not scope or not is_private(weight.input):
        return "what else reads the weight, or another scope, has its quantizer"
    arrays = folded_batchnorm.fold(parts.weight, (*parts.vectors, parts.epsilon), parts.shape)
    of_bias = readable.get(id(bias))
    held = query.constant_array(weight.input), _bias_values(bias, of_bias)
    if any(found is None for found in held):
        return "its weight or bias is computed"
    activation = readable.get(id(layer.inputs[0]))
    step: np.ndarray | float = 0.0 if of_bias is None else of_bias.qparams.scale
    if of_bias is None and activation is not None and qdq.BIAS_GRID in layer.metadata_props:
        step = activation.qparams.scale * weight.qparams.scale
    if not _close(arrays[0], held[0]) or not _close(arrays[1], held[1], step):
        return "its weights were changed after folding"
    ends = (weight.quantize, None if of_bias is None else of_bias.quantize)
    first = next(node for node in scope if node in ends)
    _write(_Maker(scope, first, names), layer, parts, weight, of_bias, readable)
    layer.metadata_props[batchnorm.KEPT] = folded_batchnorm.COMPUTED
    layer.metadata_props[folded_batchnorm.MOMENTUM] = f"{parts.momentum:.6g}"
    return None


def _bias_values(bias: ir.Value, quantizer: Quantizer | None) -> np.ndarray | None:
    if quantizer is None:
        return query.constant_array(bias)
    if quantizer.stored and quantizer.derived_from is None:
        return None
    found = query.constant_array(quantizer.input)
    return found if found is None or not quantizer.stored else numerics.dequantize(found, quantizer.qparams)


def _close(computed: np.ndarray, held: np.ndarray | None, step: np.ndarray | float = 0.0) -> bool:
    if held is None or held.shape != computed.shape or not np.isfinite(computed).all():
        return False
    return bool((np.abs(computed - held) <= CLOSE * np.abs(computed).max(initial=0.0) + step).all())


@dataclasses.dataclass
class _Maker:
    """Makes nodes in front of another."""

    scope: walk.Scope
    before: ir.Node
    names: build.Names

    def node(
        self, op: str, inputs: list[ir.Value], name: str, shape: tuple[int, ...], part: str | None = None
    ) -> ir.Value:
        stamp = {build.CREATED_BY: ComputeBatchnorm.name, build.LEFT_FLOAT: WHY}
        made = build.node(
            op,
            inputs,
            [self.names.fresh(name)],
            dtype=ir.DataType.FLOAT,
            shape=ir.Shape(shape),
            name=self.names.fresh(f"{name}_{op}"),
            stamp=stamp if part is None else {**stamp, batchnorm.KEPT: part},
        )
        self.scope.insert_before(self.before, made)
        return made.outputs[0]

    def constant(self, name: str, array: np.ndarray) -> ir.Value:
        return build.constant(self.scope, self.names.fresh(name), array, before=self.before)


def _write(
    make: _Maker,
    layer: ir.Node,
    parts: Parts,
    weight: Quantizer,
    of_bias: Quantizer | None,
    readable: dict[int, Quantizer],
) -> None:
    """Write the fold in front of the quantizers, with f = gamma / sqrt(var + eps).

    weight' = weight f, bias' = beta - mean f.
    """
    base, channels = layer.name or str(layer.outputs[0].name), parts.vectors[0].shape
    overwrite(weight.input, parts.weight, make.names)
    quantize = weight.nodes[0]
    raw = quantize.inputs[0]
    assert raw is not None
    gamma, beta, mean, variance = map(make.constant, parts.names, parts.vectors)
    widened = make.node("Add", [variance, make.constant(f"{base}_epsilon", parts.epsilon)], f"{base}_widened", channels)
    deviation = make.node("Sqrt", [widened], f"{base}_deviation", channels)
    factor = make.node("Div", [gamma, deviation], f"{base}_factor", channels)
    beside = make.node(
        "Reshape",
        [factor, make.constant(f"{base}_factor_shape", np.asarray(parts.shape, np.int64))],
        f"{base}_factor_beside",
        parts.shape,
    )
    folded = make.node("Mul", [raw, beside], f"{raw.name}_folded", parts.weight.shape, "weight")
    quantize.replace_input_with(0, folded)
    centre = make.node("Mul", [mean, factor], f"{base}_centre", channels)
    bias = make.node("Sub", [beta, centre], f"{base}_folded_bias", channels, "bias")
    spent = layer.inputs[2]
    if of_bias is not None and of_bias.quantize is not None:
        spent = of_bias.input
        of_bias.quantize.replace_input_with(0, bias)
    else:
        activation = readable.get(id(layer.inputs[0]))
        sources = (activation, weight) if of_bias is None else of_bias.derived_from
        on_grid = of_bias is not None or qdq.BIAS_GRID in layer.metadata_props
        if on_grid and sources is not None and sources[0] is not None:
            bias = _rounded(_Maker(make.scope, layer, make.names), bias, sources[0], weight, base)
        layer.replace_input_with(2, bias)
        if of_bias is not None:
            drop(of_bias)
    drop_unused(spent)


def _rounded(make: _Maker, bias: ir.Value, activation: Quantizer, weight: Quantizer, base: str) -> ir.Value:
    """`bias` on the grid of the accumulator."""
    channels = bias.shape.numpy() if bias.shape is not None else ()
    size = channels if weight.qparams.scale.ndim else ()
    step = make.node("Mul", [activation.scales[0], weight.scales[0]], f"{base}_bias_scale", size)
    steps = make.node("Div", [bias, step], f"{base}_bias_steps", channels)
    codes = make.node("Round", [steps], f"{base}_bias_codes", channels)
    return make.node("Mul", [codes, step], f"{base}_bias_rounded", channels)
