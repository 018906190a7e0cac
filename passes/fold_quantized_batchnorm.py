"""BatchNormalization folded into the scales of the quantized weight in front of it: codes keep their size."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Literal

import numpy as np
import onnx_ir as ir

from onnxqat import numerics
from onnxqat.graph import batchnorm, build, qdq, query, walk
from onnxqat.graph.quantizer import Quantizer
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._batchnorm import Affine, affine
from onnxqat.passes._edits import Log, absorb, as_gemm, drop_unused, is_private
from onnxqat.passes._forms import float_name
from onnxqat.passes._inference import Inferred
from onnxqat.passes._quantized_weight import drop, exchange, overwrite
from onnxqat.passes.derive_bias import put_on_grid
from onnxqat.placement.tensor_specs import output_axis
from onnxqat.types import QParams

LARGEST_BIAS = 0.99 * 2.0**31
RULE = "BatchNormalization folded"


class FoldQuantizedBatchnorm(Pass):
    """A BatchNormalization behind a layer with quantized weights disappears into their scales and the layer's bias.

    With ``f = gamma / sqrt(variance + epsilon)`` the scale of an output channel becomes ``scale * |f|`` and the bias
    ``(b - mean) * f + beta``, computed in float64 and stored in float32. Nothing divides by gamma.

    1. Conv, ConvTranspose and Gemm, with one weight scale per output channel, in train or deploy form. MatMul of two
       matrices becomes a Gemm, which has a bias.
    2. Codes stay; where f is negative they change their sign. A channel with f = 0 gets the codes of zero and the
       middle scale of the others.
    3. Float weights in front of their quantizer are scaled too; a value that would leave its code is put on it.
    4. The bias goes to the accumulator's int32 grid, or stays float on that grid with ``bias="snapped"``, or just
       float with ``bias="float"``; without a quantized activation it stays float in any case. Where int32 cannot hold
       a bias, the scale of its channel is raised, and its codes are rounded to that: the one case in which codes
       change. A remark says so.
    5. A limit on the significant bits of the scales (``onnxqat.scale_bits``) ends: products with f are not short.
    6. A weight that other nodes read stays theirs; the layer gets a quantizer of its own.
    7. Left alone, with the reason: scales per tensor, in blocks, powers of two or not float32; a code without an opposite in a
       channel with negative f (-8 of -8..7); parameters that are computed; a layer output that something else
       reads; Gemm with alpha or beta; what float32 cannot hold.

    Tolerance: float rounding, 1e-5 of the output's range, with ``bias="float"``; half an accumulator step per
    channel more with a bias on the grid. ::

        c = Conv(x_dequantized, DequantizeLinear(q, s, z))   y = BatchNormalization(c, gamma, beta, mean, variance)
        y = Conv(x_dequantized, DequantizeLinear(q, s * |f|, z), conv_bias)

    Args:
        bias: ``"int32"``, ``"snapped"`` or ``"float"``.
    """

    def __init__(self, bias: Literal["int32", "snapped", "float"] = "int32") -> None:
        self.bias = bias

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Fold what can be folded; see the class."""
        log = Log()
        readable = qdq.by_output(qdq.quantizers(model, every=True))
        found = list(_candidates(model, readable))
        inferred = Inferred(model) if any(layer.op_type == "MatMul" for _, _, layer, _ in found) else None
        folded: list[ir.Node] = []
        for scope, node, layer, weight in found:
            name = query.label(node)
            change = _change(layer, node, weight, readable, fits_int32=self.bias == "int32")
            if layer.op_type == "MatMul" and inferred is not None and inferred.rank(layer.inputs[0]) != 2:
                change = "what MatMul reads is no matrix, or its rank is unknown"
            if isinstance(change, str):
                log.left(f"BatchNormalization is not folded: {change}", name)
                continue
            folded.append(_fold(scope, layer, node, weight, change, readable, context.names))
            log.did("BatchNormalization folded into the scales of quantized weights", name)
            if change.rounded:
                log.left("weights were rounded to a larger scale, so that the bias fits int32", name)
        if folded and self.bias != "float":
            readable = qdq.by_output(qdq.quantizers(model, every=True))
            for layer in folded:
                if _has_accumulator(layer, readable):
                    plain = layer.inputs[2]
                    put_on_grid(layer, readable, "int32" if self.bias == "int32" else "float", RULE, context.names)
                    drop_unused(plain)
        return log.result()


def _candidates(
    model: ir.Model, readable: dict[int, Quantizer]
) -> Iterator[tuple[walk.Scope, ir.Node, ir.Node, Quantizer]]:
    """Scope, BatchNormalization, layer in front of it, and the quantizer of that one's weight."""
    for scope in walk.scopes(model):
        for node in scope:
            layer = batchnorm.layer(node) if batchnorm.is_batchnorm(node) else None
            weight = None if layer is None else readable.get(id(layer.inputs[1]))
            if layer is not None and weight is not None:
                yield scope, node, layer, weight


@dataclasses.dataclass(frozen=True, eq=False)
class _Change:
    """Change of a layer: parameters, codes and float values of its weight, and a bias, float32 (C,)."""

    qparams: QParams
    codes: np.ndarray
    values: np.ndarray
    bias: np.ndarray
    rounded: bool


def _change(
    layer: ir.Node, node: ir.Node, weight: Quantizer, readable: dict[int, Quantizer], *, fits_int32: bool
) -> _Change | str:
    """Return the layer's new scale, codes, values and bias with the normalization folded in, or the reason for none.

    weight' = weight f, bias' = bias f + offset with f = gamma / sqrt(var + eps): codes stay, scales take abs(f), and
    codes of channels with a negative factor are mirrored at the zero point.
    """
    function, old = affine(node), weight.qparams
    held = query.constant_array(weight.input)
    if isinstance(function, str):
        return function
    bias = _bias(layer, readable, function.factor.size)
    reason = _refusal(layer, weight, function) or (bias if isinstance(bias, str) else None)
    if reason is not None or held is None or isinstance(bias, str):
        return reason or "the weight is computed"
    dead = old.scale.astype(np.float64) * np.abs(function.factor) < numerics.SMALLEST_SCALE
    factor = np.where(dead, 0.0, function.factor)
    codes = np.asarray(held).astype(old.qtype.computed_type)
    codes = codes if weight.stored else numerics.quantize(held, old)
    sign = numerics.along_axis(np.sign(factor), old.axis, codes.ndim).astype(codes.dtype)
    zero = numerics.spread(old.zero_point, old, codes.shape)
    turned = (codes - zero) * sign + zero
    if turned.size and (turned.min() < old.qtype.quant_min or turned.max() > old.qtype.quant_max):
        return (
            f"a channel's factor is negative, and codes {old.qtype.quant_min}..{old.qtype.quant_max} lack an opposite"
        )
    offset = bias * function.factor + function.offset
    activation = readable.get(id(layer.inputs[0]))
    integer = activation is not None and _is_integer(activation, weight)
    step = activation.qparams.scale if fits_int32 and activation is not None and integer else None
    scale, raised = _scales(old, factor, offset, step)
    new = dataclasses.replace(old, scale=scale, scale_bits=None)
    if raised is not None:
        turned = np.rint((turned - zero) / numerics.along_axis(raised, old.axis, codes.ndim)).astype(np.int64) + zero
    values = numerics.dequantize(turned, new)
    if not weight.stored:
        with np.errstate(over="ignore"):
            scaled = (held * numerics.along_axis(factor, old.axis, held.ndim)).astype(np.float32)
        values = np.where(numerics.quantize(scaled, new) == turned, scaled, values)
    with np.errstate(over="ignore"):
        narrow = offset.astype(np.float32)
    if not (np.isfinite(narrow).all() and np.isfinite(values).all()):
        return "float32 cannot hold what it gives"
    return _Change(new, turned, values, narrow, raised is not None)


def _refusal(layer: ir.Node, weight: Quantizer, function: Affine) -> str | None:
    qparams, rank = weight.qparams, query.rank(weight.input) or 1
    if qparams.block_size or qparams.axis != output_axis(layer) % rank:
        return "the weight has no scale for each output channel"
    if layer.op_type == "ConvTranspose" and query.attribute(layer, "group", 1) != 1:
        return "groups of a ConvTranspose share the channels of its weight"
    if qparams.scale_bits == 1:
        return "the weight's scales are powers of two"
    if any(
        v.dtype not in (None, ir.DataType.FLOAT) for v in (*weight.scales, *(() if weight.stored else (weight.input,)))
    ):
        return "the weight or its scale is not float32"
    if function.factor.shape != qparams.scale.shape:
        return "it has another number of channels than the layer"
    if layer.op_type == "Gemm" and any(query.attribute(layer, name, 1.0) != 1.0 for name in ("alpha", "beta")):
        return "Gemm has alpha or beta"
    return None


def _bias(layer: ir.Node, readable: dict[int, Quantizer], channels: int) -> np.ndarray | str:
    """Return the bias of the layer, float64 (C,), or the reason why it cannot be read."""
    value = query.input_at(layer, 2)
    if value is None:
        return np.zeros(channels)
    quantizer, found = readable.get(id(value)), query.constant_array(value)
    if quantizer is not None:
        codes = query.constant_array(quantizer.input)
        if codes is not None and not quantizer.stored:
            found = numerics.fake_quantize(codes, quantizer.qparams)
        elif codes is not None:
            found = numerics.dequantize(codes, quantizer.qparams)
    if found is None:
        return "the bias of the layer is computed"
    return found.astype(np.float64).reshape(-1) if found.size == channels else "the bias of the layer is no row"


def _is_integer(*quantizers: Quantizer) -> bool:
    return all(q.qparams.scheme.is_integer for q in quantizers)


def _scales(
    old: QParams, factor: np.ndarray, offset: np.ndarray, step: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """The scales, float32 (C,), and by how much more they were raised so that the bias fits int32, where they were."""
    exact = old.scale.astype(np.float64) * np.abs(factor)
    live = exact > 0
    middle = np.median(exact[live]) if live.any() else 1.0
    exact = np.clip(np.where(live, exact, middle), None, np.finfo(np.float32).max)
    if step is None or step.ndim:
        return exact.astype(np.float32), None
    least = np.abs(offset) / (float(step) * LARGEST_BIAS)
    raised = np.maximum(exact, least)
    ratio = raised / exact
    return raised.astype(np.float32), ratio if (ratio[live] > 1).any() else None


def _has_accumulator(layer: ir.Node, readable: dict[int, Quantizer]) -> bool:
    activation, weight = (readable.get(id(v)) for v in layer.inputs[:2])
    return (
        activation is not None
        and weight is not None
        and not activation.qparams.scale.ndim
        and _is_integer(activation, weight)
    )


def _fold(
    scope: walk.Scope,
    layer: ir.Node,
    node: ir.Node,
    weight: Quantizer,
    change: _Change,
    readable: dict[int, Quantizer],
    names: build.Names,
) -> ir.Node:
    stamp = {build.CREATED_BY: FoldQuantizedBatchnorm.name, build.RULE: RULE}
    exchange(scope, layer, weight, change.qparams, change.codes, change.values, names, stamp=stamp)
    if layer.op_type == "MatMul":
        layer = as_gemm(scope, layer, stamp)
    _set_bias(scope, layer, change.bias, readable, names)
    parameters = list(node.inputs[1:])
    absorb(node, layer.outputs[0])
    for value in parameters:
        drop_unused(value)
    return layer


def _set_bias(
    scope: walk.Scope, layer: ir.Node, bias: np.ndarray, readable: dict[int, Quantizer], names: build.Names
) -> None:
    old = query.input_at(layer, 2)
    layer.metadata_props.pop(qdq.BIAS_GRID, None)
    quantizer = None if old is None else readable.get(id(old))
    if old is not None and quantizer is None and is_private(old):
        overwrite(old, bias.reshape(np.asarray(query.constant_array(old)).shape), names)
        return
    base = f"{layer.name or layer.outputs[0].name}_bias"
    if old is not None:
        base = str(old.name) if quantizer is None else float_name(quantizer)
    made = build.constant(scope, names.fresh(base), bias, before=layer)
    layer.resize_inputs(3)
    layer.replace_input_with(2, made)
    if quantizer is not None:
        drop(quantizer)
