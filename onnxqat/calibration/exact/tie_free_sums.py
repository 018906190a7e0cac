"""Sums that integer kernels round as QuantizeLinear does: whole shifts between grids, and no sum half-way between codes.

A fixed-point kernel multiplies its accumulator by ``scale of the inputs / scale of the output``. Where that factor is
a power of two, the kernel is exact but for ties, which it rounds up, while QuantizeLinear rounds them to even. Where
all codes of a weight are even and its bias is odd, every accumulator is odd, and an odd number shifted by two bits or
more never lies half-way between two codes. It costs a bit of the weights: use it with a grid of 8.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat import numerics
from onnxqat.calibration.exact.shift_limits import Ends
from onnxqat.graph import build, query, walk
from onnxqat.placement.tensor_specs import output_axis
from onnxqat.types import FloatArray, Placement, QParams, QuantPlan

LARGEST_BIAS = 2.0**30
LAYERS = frozenset({"Conv", "ConvTranspose", "Gemm"})

Scales = npt.NDArray[np.float64]


def add_biases(model: ir.Model) -> None:
    """Give layers of constant weight a bias of zeros where they have none, for :func:`make_odd` to find."""
    for node in walk.nodes(model):
        weight = query.constant_tensor(node.inputs[1]) if node.op_type in LAYERS and len(node.inputs) > 1 else None
        if weight is None or node.domain or query.input_at(node, 2) is not None:
            continue
        shape = weight.numpy().shape
        channels = shape[output_axis(node)]
        if node.op_type == "ConvTranspose":
            channels *= int(query.attribute(node, "group", 1))
        names = build.Names(model)
        zeros = np.zeros(channels, np.float32)
        bias = build.constant(walk.scope_of(node), names.fresh(f"{node.outputs[0].name}_bias"), zeros, before=node)
        node.resize_inputs(3)
        node.replace_input_with(2, bias)


def whole_shifts(plan: QuantPlan, placements: list[Placement], constants: Mapping[str, np.ndarray]) -> list[Placement]:
    """`placements` with weight scales that make each layer's factor a power of two.

    Of the two powers beside what the weight's range asks for, each channel takes that with the smaller squared error
    on even codes; the coarser one where a bias would need more than 30 bits on the finer.

    Args:
        plan: its shift limits of the form ``in0 + in1 - out`` say which layers.
        placements: all quantizers, activations in their final form.
        constants: values of weights and biases by name.
    """
    result = list(placements)
    ends = Ends(plan, placements)
    for limit in plan.shift_limits:
        if {what for _, what in limit.terms} != {"in0", "in1", "out"}:
            continue
        x, w, out = ends.input(limit, 0), ends.input(limit, 1), ends.output(limit)
        if x is None or w is None or out is None or placements[w].tensor not in constants:
            continue
        values = np.asarray(constants[placements[w].tensor], np.float32)
        ratio = np.asarray(placements[x].qparams.scale, np.float64) / placements[out].qparams.scale
        if ratio.size != 1 or placements[w].qparams.block_size:
            continue
        bias = constants.get(limit.inputs[2]) if len(limit.inputs) > 2 else None
        scale = _nearest(values, placements[w].qparams, float(ratio.reshape(())))
        if bias is not None:
            needed = np.abs(bias.astype(np.float64)) / (float(placements[x].qparams.scale) * LARGEST_BIAS)
            needed = needed if needed.shape == scale.shape else needed.max(initial=0)
            scale = np.where(scale < needed, scale * 2.0 ** np.ceil(np.log2(np.maximum(needed / scale, 1))), scale)
        qparams = dataclasses.replace(placements[w].qparams, scale=np.asarray(scale, np.float32))
        result[w] = dataclasses.replace(placements[w], qparams=qparams)
    return result


def _nearest(values: FloatArray, qparams: QParams, ratio: float) -> Scales:
    """Scale ``2**-k / ratio`` per channel, next above or below that of `qparams`, with the smaller squared error."""
    shift = np.ceil(np.log2(qparams.scale.astype(np.float64) * ratio) - 1e-6)
    coarse, fine = 2.0**shift / ratio, 2.0 ** (shift - 1) / ratio
    errors = [_squared_errors(values, dataclasses.replace(qparams, scale=s.astype(np.float32))) for s in (coarse, fine)]
    return np.asarray(np.where(errors[1] < errors[0], fine, coarse))


def _squared_errors(values: FloatArray, qparams: QParams) -> Scales:
    apart = np.square(_on_even_codes(values, qparams).astype(np.float64) - values)
    axes = tuple(i for i in range(values.ndim) if qparams.axis is None or i != qparams.axis % values.ndim)
    return np.asarray(apart.sum(axis=axes))


def _on_even_codes(values: FloatArray, qparams: QParams) -> FloatArray:
    """`values` on the even codes of a symmetric quantizer."""
    scale = numerics.spread(qparams.scale, qparams, values.shape)
    low, high = qparams.qtype.quant_min, qparams.qtype.quant_max
    codes = np.clip(2 * np.rint(values / (2 * scale)), low + low % 2, high - high % 2)
    return np.asarray(codes * scale, np.float32)


def make_odd(model: ir.Model, plan: QuantPlan, placements: tuple[Placement, ...]) -> None:
    """Round the weights of `model` to even codes, and biases to odd multiples of the accumulator's step, in place.

    The layers are those of :func:`whole_shifts`. A weight or bias that is read elsewhere too stays, and so does
    everything behind it: its layer may meet ties. Training moves weights off the even codes again.
    """
    nodes = {str(node.name): node for node in walk.nodes(model) if node.name}
    ends = Ends(plan, list(placements))
    for limit in plan.shift_limits:
        node = nodes.get(limit.node)
        if node is None or node.op_type not in LAYERS or len(node.inputs) < 3:
            continue
        x, w = ends.input(limit, 0), ends.input(limit, 1)
        if x is None or w is None:
            continue
        weight, bias = node.inputs[1], node.inputs[2]
        values, offset = query.constant_array(weight), query.constant_array(bias)
        if weight is None or bias is None or values is None or offset is None:
            continue
        if any(query.reads(v) != 1 or v.producer() is not None for v in (weight, bias)):
            continue
        scale = np.broadcast_to(placements[w].qparams.scale, offset.shape) * placements[x].qparams.scale
        odd = 2 * np.floor(offset.astype(np.float64) / (2 * scale.astype(np.float64))) + 1
        even = _on_even_codes(np.asarray(values, np.float32), placements[w].qparams)
        weight.const_value = build.tensor(even, name=weight.name)
        bias.const_value = build.tensor(np.asarray(odd * scale, np.float32), name=bias.name)
