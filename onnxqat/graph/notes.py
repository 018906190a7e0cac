"""Notes on quantizers, layers and the model, in their metadata: hints about what the file holds, which its values overrule.

A file may have been edited, by hand or by a tool that knows nothing of them, so that a note that contradicts the constants
beside it is as if it were not there: runtimes compute with the constants.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from onnxqat import numerics
from onnxqat.graph import query
from onnxqat.types import QParams, QType

BIAS_GRID = "onnxqat.bias_grid"  # on a node whose float bias lies on the grid of its accumulator
SCALE_BITS = "onnxqat.scale_bits"  # on the nodes of a quantizer whose scale is kept to so many significant bits
PRESCRIBED = "onnxqat.prescribed"  # on the nodes of a quantizer whose parameters the target has built in
LARGEST_CODES = "onnxqat.largest_codes"  # on a layer: the codes of its input for which its sums do not saturate
ROUNDED_BITS = (
    "onnxqat.rounded_bits"  # on a model: the least width that rounding of weights on calibration data made up for
)
ACCUMULATOR_BITS = "onnxqat.accumulator_bits"  # on a model: width that the sums of its layers were kept within
QUANT_MIN, QUANT_MAX = "onnxqat.quant_min", "onnxqat.quant_max"
NARROW = 7
"""Width below which weights that were rounded on data compute another function without their quantizers: a network of five
layers at 3 bits, reconstructed against itself, ends 30 times as far from the float model as it was."""

_WHOLE_MANTISSA = 24  # bits of float32's significand: the note can state no more


def scale_bits(node: ir.Node, scale: np.ndarray) -> int | None:
    """Significant bits that the scale of `node` is kept to; None without a note, and where `scale` has more.

    Args:
        node: QuantizeLinear or DequantizeLinear.
        scale: float32, positive.
    """
    text = node.metadata_props.get(SCALE_BITS, "")
    bits = int(text) if text.isdigit() and len(text) < 3 else 0
    if not 1 <= bits <= _WHOLE_MANTISSA:
        return None
    # Rounding to so many bits leaves a scale alone exactly where it has no more of them.
    return bits if np.array_equal(numerics.shorten(scale, bits).astype(np.float32), scale) else None


def grid(dequantize: ir.Node, qparams: QParams) -> QParams:
    """`qparams` on the grid that the codes in front of `dequantize` were clipped to, which stored integers do not show.

    The grid of the storage type stays without a note, and where a code lies outside what it states.
    """
    try:
        low, high = (int(dequantize.metadata_props.get(key, "")) for key in (QUANT_MIN, QUANT_MAX))
        qtype = QType(qparams.qtype.storage, low, high)
    except ValueError:
        return qparams
    if qtype == qparams.qtype:
        return qparams
    codes = query.constant_array(dequantize.inputs[0])
    if codes is not None and codes.size:
        # Types of 4 and 2 bits are not numpy's own, whose smallest and largest element is found quickly.
        whole = codes if codes.dtype.kind in "iu" else codes.astype(np.int16)
        if not (low <= int(whole.min()) and int(whole.max()) <= high):
            return qparams
    return dataclasses.replace(qparams, qtype=qtype)


def has_bias_on(node: ir.Node, accumulator: QParams) -> bool:
    """Check whether a note says that the constant bias of `node` lies on `accumulator`, and its values still do.

    Args:
        node: Conv, ConvTranspose or Gemm.
        accumulator: the grid, per tensor or with one scale per element of the bias.
    """
    values = query.constant_array(node.inputs[2]) if BIAS_GRID in node.metadata_props else None
    if values is None or values.dtype.kind != "f":
        return False
    given = values.reshape(-1).astype(np.float32)
    snapped = numerics.fake_quantize(given, accumulator)
    # A product of a code and the scale is rounded once, in the type of the bias.
    return bool(np.allclose(snapped, given, rtol=float(np.finfo(values.dtype).eps), atol=0.0))


def moves_function(model: ir.Model) -> bool:
    """Tell if `model` without its quantizers computes another function, since narrow weights were rounded on data."""
    text = model.metadata_props.get(ROUNDED_BITS, "")
    return text.isdigit() and len(text) < 3 and int(text) < NARROW


def accumulator_bits(model: ir.Model) -> int | None:
    """Width of the accumulators that `model` was made for; None without a valid note."""
    text = model.metadata_props.get(ACCUMULATOR_BITS, "")
    return int(text) if text.isdigit() and len(text) < 3 and int(text) > 1 else None
