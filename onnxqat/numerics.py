"""The quantization formulas in numpy: the reference that torch, CUDA and onnxruntime are tested against.

``q = saturate(round_half_even(x / scale) + zero_point)``, ``x' = (q - zero_point) * scale``: float32, a true
division (ONNX QuantizeLinear/DequantizeLinear, versions 10 to 25). Multiplying by ``1 / scale`` instead gives
other codes for about 3 % of values that lie on a related grid.
"""

from __future__ import annotations

import numpy as np

from onnxqat.types import FloatArray, IntArray, QParams, QType

SMALLEST_SCALE = np.float32(np.finfo(np.float32).tiny)


def along_axis(values: FloatArray | IntArray, axis: int | None, ndim: int) -> np.ndarray:
    """Reshape per-channel `values` of shape (C,) so that they broadcast along `axis` of an `ndim`-dimensional tensor."""
    if axis is None:
        return np.asarray(values)
    shape = [1] * ndim
    shape[axis] = -1
    return np.asarray(values).reshape(shape)


def quantize(x: FloatArray, qparams: QParams) -> IntArray:
    """Codes of `x`, int64, saturated to the grid of `qparams` (ONNX QuantizeLinear, then Clip).

    Infinities saturate; NaN becomes the smallest code, as in onnxruntime.
    """
    x = np.asarray(x, np.float32)
    scale = along_axis(qparams.scale, qparams.axis, x.ndim)
    zero_point = along_axis(qparams.zero_point, qparams.axis, x.ndim)
    with np.errstate(over="ignore", invalid="ignore"):
        steps = np.rint(x / scale).astype(np.float64)
    low, high = qparams.qtype.quant_min, qparams.qtype.quant_max
    steps = np.where(np.isnan(steps), low, np.clip(steps + zero_point, low, high))
    return np.asarray(steps.astype(np.int64))


def dequantize(codes: IntArray, qparams: QParams) -> FloatArray:
    """float32 values of `codes` (ONNX DequantizeLinear)."""
    codes = np.asarray(codes)
    scale = along_axis(qparams.scale, qparams.axis, codes.ndim)
    zero_point = along_axis(qparams.zero_point, qparams.axis, codes.ndim)
    with np.errstate(over="ignore"):
        return np.asarray((codes.astype(np.int64) - zero_point).astype(np.float32) * scale, np.float32)


def fake_quantize(x: FloatArray, qparams: QParams) -> FloatArray:
    """`x` on the grid: quantize, then dequantize."""
    return dequantize(quantize(x, qparams), qparams)


def zero_point_of(qtype: QType) -> int:
    """Zero point of a symmetric quantizer: 0 on signed grids, the middle (128 for uint8) on unsigned ones."""
    return 0 if qtype.quant_min < 0 else (qtype.quant_max + 1) // 2


def from_range(
    low: FloatArray,
    high: FloatArray,
    qtype: QType,
    *,
    symmetric: bool,
    axis: int | None = None,
    power_of_two: bool = False,
) -> QParams:
    """Parameters that cover ``[low, high]``, widened to contain 0 so that zero is exact.

    Symmetric: ``scale = max(|low|, |high|) / quant_max`` (the largest magnitude gets the largest code, no
    half-step saturation). Asymmetric: ``scale = (high - low) / (quant_max - quant_min)``. A range of zero width
    gives scale 1 and the zero point of zero. Power-of-two scales are rounded up, so that nothing is clipped.

    Args:
        low: smallest values, float32, shape () or (C,).
        high: largest values, same shape.
        qtype: the grid.
        symmetric: whether the zero point is fixed.
        axis: channel axis when the ranges are per channel.
        power_of_two: restrict scales to powers of two.

    Raises:
        ValueError: a symmetric quantizer on a grid without codes above its zero point.
    """
    lo = np.minimum(np.asarray(low, np.float64), 0.0)
    hi = np.maximum(np.asarray(high, np.float64), 0.0)
    zero = zero_point_of(qtype)
    if symmetric:
        steps = qtype.quant_max - zero
        if steps <= 0:
            raise ValueError(f"codes {qtype.quant_min}..{qtype.quant_max} cannot be symmetric")
        scale = np.maximum(-lo, hi) / steps
    else:
        scale = (hi - lo) / (qtype.quant_max - qtype.quant_min)
    empty = scale == 0
    scale = np.where(empty, 1.0, scale)
    if power_of_two:
        scale = np.exp2(np.clip(np.ceil(np.log2(scale)), -126, 127))
    scale = np.clip(scale, SMALLEST_SCALE, np.finfo(np.float32).max).astype(np.float32)
    if symmetric:
        zero_point = np.full(scale.shape, zero, np.int64)
    else:
        centre = qtype.quant_min - np.rint(lo.astype(np.float32) / scale)
        zero_point = np.clip(centre, qtype.quant_min, qtype.quant_max).astype(np.int64)
        zero_point = np.where(empty, np.clip(0, qtype.quant_min, qtype.quant_max), zero_point)
    return QParams(np.asarray(scale, np.float32), np.asarray(zero_point, np.int64), qtype, axis)
