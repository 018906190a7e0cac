"""Defects of quantized weights and other constants."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from onnxqat import numerics
from onnxqat.graph import query
from onnxqat.graph.layers import LAYERS
from onnxqat.graph.quantizer import Quantizer
from onnxqat.linting.context import LintContext, constant_values, is_integer, output_axis, per_channel
from onnxqat.linting.rule import Found, Rule, Severity

CLIPPED = 10.0
"""Squared error of clipping over that of rounding from which on clipping is no choice of an observer."""
WIDE, SATURATED, UNUSED = 7, 0.05, 8
NOTHING = 1e-4  # of the largest weight: a channel below it is as good as 0, and its scale may follow its bias


def _constants(file: LintContext) -> Iterator[tuple[Quantizer, np.ndarray]]:
    """Quantized float constants, with their finite values."""
    for quantizer in file.quantizers:
        if quantizer.stored or not is_integer(quantizer):
            continue
        values = constant_values(quantizer)
        if values is not None and values.size and np.isfinite(values).all() and _has_matching_scale(quantizer, values):
            yield quantizer, values


def _has_matching_scale(quantizer: Quantizer, values: np.ndarray) -> bool:
    axis = quantizer.qparams.axis
    return axis is None or (axis < values.ndim and values.shape[axis] == quantizer.qparams.scale.size)


def _codes(quantizer: Quantizer) -> np.ndarray | None:
    """Codes of a quantized constant."""
    if quantizer.stored:
        found = query.constant_array(quantizer.input)
        return None if found is None else np.asarray(found).astype(np.int64)
    values = constant_values(quantizer)
    return (
        None
        if values is None or not _has_matching_scale(quantizer, values)
        else numerics.quantize(values, quantizer.qparams)
    )


def _clipped(file: LintContext) -> Iterator[Found]:
    for quantizer, values in _constants(file):
        grid, axis = quantizer.qparams.qtype, quantizer.qparams.axis
        scale = numerics.along_axis(quantizer.qparams.scale, axis, values.ndim).astype(np.float64)
        zero = numerics.along_axis(quantizer.qparams.zero_point, axis, values.ndim)
        steps = values / scale + zero
        beyond = np.maximum(np.maximum(grid.quant_min - steps, steps - grid.quant_max), 0.0)
        noise = float(np.square(scale).mean() / 12)
        if beyond.max() > 1.0 and float(np.square(beyond * scale).mean()) > CLIPPED * noise:
            share = float((beyond > 0.5).mean())
            text = f"{share:.2%} of the values lie outside the grid, by up to {float(beyond.max()):.4g} steps"
            yield Found(text, quantizer.nodes[0], quantizer.tensor)


def _saturated(file: LintContext) -> Iterator[Found]:
    for quantizer in file.quantizers:
        grid = quantizer.qparams.qtype
        if not quantizer.stored or not is_integer(quantizer) or grid.bits < WIDE or grid.storage == "int32":
            continue
        codes = _codes(quantizer)
        if codes is None or codes.size == 0:
            continue
        low, high = (codes == grid.quant_min), (codes == grid.quant_max)
        allowed = max(SATURATED * codes.size, 3.0 * quantizer.qparams.scale.size)
        if int(low.sum() + high.sum()) > allowed:
            share = float((low | high).mean())
            yield Found(
                f"{share:.1%} of the codes are the smallest or the largest", quantizer.nodes[0], quantizer.tensor
            )


def _weights(file: LintContext) -> Iterator[tuple[ir.Node, Quantizer, np.ndarray, int]]:
    """Layers with an integer weight: the node, its quantizer, the codes and the axis of the output channels."""
    for node in file.layers(*LAYERS):
        quantizer = file.reading(node, 1)
        if quantizer is None or quantizer.role != "weight" or not is_integer(quantizer):
            continue
        codes, axis = _codes(quantizer), output_axis(node, node.inputs[1])
        if codes is not None and codes.size and axis is not None and axis < codes.ndim:
            yield node, quantizer, codes, axis


def _zero_rows(quantizer: Quantizer, codes: np.ndarray, axis: int) -> np.ndarray:
    zero = numerics.along_axis(quantizer.qparams.zero_point, quantizer.qparams.axis, codes.ndim)
    return np.asarray((per_channel(codes - zero, axis) == 0).all(axis=1))


def _vanished(file: LintContext) -> Iterator[Found]:
    for node, quantizer, codes, axis in _weights(file):
        values = None if quantizer.stored else constant_values(quantizer)
        if values is None:
            continue
        sizes = np.abs(per_channel(values, axis)).max(axis=1)
        lost = _zero_rows(quantizer, codes, axis) & (sizes > NOTHING * sizes.max())
        if lost.any():
            text = f"{int(lost.sum())} of {lost.size} output channels round to 0, though their weights are not 0"
            yield Found(text, node, quantizer.tensor)


def _dead(file: LintContext) -> Iterator[Found]:
    for node, quantizer, codes, axis in _weights(file):
        dead = _zero_rows(quantizer, codes, axis)
        if not quantizer.stored:
            values = constant_values(quantizer)
            dead &= ~per_channel(values, axis).any(axis=1) if values is not None else True
        if dead.any():
            yield Found(f"{int(dead.sum())} of {dead.size} output channels are 0", node, quantizer.tensor)


def _asymmetric(file: LintContext) -> Iterator[Found]:
    for node in file.layers(*LAYERS):
        quantizer = file.reading(node, 1)
        if quantizer is None or quantizer.role != "weight" or not is_integer(quantizer):
            continue
        zero, storage = quantizer.qparams.zero_point, quantizer.qparams.qtype.storage
        middle = 0 if storage.startswith("int") else (quantizer.qparams.qtype.quant_max + 1) // 2
        if (zero != middle).any():
            # onnxruntime and QNN take one unsigned zero point; nobody takes one per channel
            kind: Severity | None = None if zero.size > 1 or storage.startswith("int") else "note"
            text = f"{storage} weights with zero point {int(zero.min())}..{int(zero.max())}"
            yield Found(text, node, quantizer.tensor, kind)


def _unused_range(file: LintContext) -> Iterator[Found]:
    for node, quantizer, codes, _ in _weights(file):
        grid, zero = quantizer.qparams.qtype, quantizer.qparams.zero_point
        used = int(np.abs(codes - numerics.along_axis(zero, quantizer.qparams.axis, codes.ndim)).max())
        if grid.bits >= WIDE and used and used * UNUSED <= (grid.quant_max - grid.quant_min) // 2:
            text = f"the largest code is {used} of {(grid.quant_max - grid.quant_min) // 2}"
            yield Found(text, node, quantizer.tensor)


RULES = (
    Rule(
        code="constant-clipped",
        severity="warning",
        defect="values of a quantized constant lie far outside its grid",
        reason="they saturate: the product with them is wrong by the same factor, silently",
        remedy="give the constant a scale of its own, from its own range; after training, clip the stored values to the grid",
        source="NVIDIA/TensorRT#2527; onnxruntime/onnxruntime-qnn#417 (a constant 1.0 on another tensor's scale: error 200x)",
        check=_clipped,
    ),
    Rule(
        code="weight-saturated",
        severity="warning",
        defect="many stored codes are the smallest or largest of the grid",
        reason="weights were clipped when they were quantized",
        remedy="quantize the float weights again, with one scale a channel or a wider range",
        source="NVIDIA/TensorRT#2527",
        check=_saturated,
    ),
    Rule(
        code="channel-vanished",
        severity="warning",
        defect="output channels whose weights are not 0 round to 0",
        reason="the scale is too coarse for them: the channel gives its bias alone",
        remedy="one scale a channel, or equalize the channels first",
        source="Nagel et al., Data-Free Quantization Through Weight Equalization and Bias Correction; microsoft/onnxruntime#11415",
        check=_vanished,
    ),
    Rule(
        code="channel-dead",
        severity="note",
        defect="output channels are all 0",
        reason="they cost time and give a constant; their scale is arbitrary",
        remedy="prune them; their scale is best that of the other channels, so that the bias stays fine",
        source="a range of 0 gives scale 0 or infinity in tools without a rule for it",
        check=_dead,
    ),
    Rule(
        code="weight-asymmetric",
        severity="warning",
        defect="weights have a zero point",
        reason="OpenVINO runs them in float, TensorRT refuses them, QNN refuses one zero point a channel",
        remedy="symmetric int8 weights, zero point 0; for uint8 the middle, 128",
        source="int8 asymmetric weights run: OpenVINO 9 of 16 nodes in integers, QNN session error, TensorRT parser error",
        check=_asymmetric,
        table_decides=True,
    ),
    Rule(
        code="weight-range-unused",
        severity="note",
        defect="weights use less than an eighth of their codes",
        reason="three bits or more are wasted on values that do not occur",
        remedy="compute the scale from the weights, one a channel",
        source="Nagel et al., A White Paper on Neural Network Quantization",
        check=_unused_range,
    ),
)
