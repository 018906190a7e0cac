"""The quantization formulas in numpy: the reference that torch, CUDA and onnxruntime are tested against.

``q = saturate(round_half_even(x / scale) + zero_point)``, ``x' = (q - zero_point) * scale``: float32, a true
division (ONNX QuantizeLinear/DequantizeLinear, versions 10 to 25). Multiplying by ``1 / scale`` instead gives
other codes for about 3 % of values that lie on a related grid.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxqat.types import FloatArray, IntArray, QParams, QType, Scheme

SMALLEST_SCALE = np.float32(np.finfo(np.float32).tiny)
SMALLEST_SLACK_STEPS = 127
"""Steps from which on a range may lose one of them so that a restricted scale is rounded down."""

SMALLEST_EVEN_STEPS = 255
"""Steps from which on a range may move by one of them so that its zero point is even."""


def along_axis(values: FloatArray | IntArray, axis: int | None, ndim: int) -> np.ndarray:
    """Reshape per-channel `values` of shape (C,) so that they broadcast along `axis` of an `ndim`-dimensional tensor."""
    if axis is None:
        return np.asarray(values)
    shape = [1] * ndim
    shape[axis] = -1
    return np.asarray(values).reshape(shape)


def spread(values: FloatArray | IntArray, qparams: QParams, shape: tuple[int, ...]) -> np.ndarray:
    """A scale or zero point of `qparams` so that it broadcasts with a tensor of `shape`."""
    if not qparams.block_size:
        return along_axis(values, qparams.axis, len(shape))
    axis = qparams.axis or 0
    return np.repeat(values, qparams.block_size, axis).take(range(shape[axis]), axis)


def _numpy_type(name: str) -> np.dtype:
    """The numpy type of an element type, of ml_dtypes where numpy has none."""
    return ir.DataType[name.upper()].numpy()


def quantize(x: FloatArray, qparams: QParams) -> np.ndarray:
    """Codes of `x`, saturated to the grid of `qparams` (ONNX QuantizeLinear, then Clip): int64, or float32 values.

    Infinities saturate; NaN becomes the smallest code, as in onnxruntime. In float8 it stays NaN.
    """
    x = np.asarray(x, np.float32)
    scale = spread(qparams.scale, qparams, x.shape)
    with np.errstate(over="ignore", invalid="ignore"):
        steps = np.asarray(x / scale)
        if qparams.precision != "float32":
            steps = steps.astype(_numpy_type(qparams.precision)).astype(np.float32)
    low, high = qparams.qtype.quant_min, qparams.qtype.quant_max
    if qparams.qtype.is_float:
        with np.errstate(invalid="ignore"):  # a cast of NaN
            return np.asarray(np.clip(steps, low, high).astype(_numpy_type(qparams.qtype.storage)), np.float32)
    zero_point = spread(qparams.zero_point, qparams, x.shape)
    steps = np.rint(steps).astype(np.float64)
    steps = np.where(np.isnan(steps), low, np.clip(steps + zero_point, low, high))
    return np.asarray(steps.astype(np.int64))


def dequantize(codes: np.ndarray, qparams: QParams) -> FloatArray:
    """float32 values of `codes` (ONNX DequantizeLinear)."""
    codes = np.asarray(codes)
    scale = spread(qparams.scale, qparams, codes.shape)
    if qparams.qtype.is_float:
        return np.asarray(codes.astype(np.float32) * scale, np.float32)
    zero_point = spread(qparams.zero_point, qparams, codes.shape)
    with np.errstate(over="ignore"):
        return np.asarray((codes.astype(np.int64) - zero_point).astype(np.float32) * scale, np.float32)


def fake_quantize(x: FloatArray, qparams: QParams) -> FloatArray:
    """`x` on the grid: quantize, then dequantize."""
    return dequantize(quantize(x, qparams), qparams)


def shorten(scale: np.ndarray, bits: int | None, slack: float = 0.0) -> np.ndarray:
    """The next scale with at most `bits` significant bits, at least as large; 1 bit gives a power of two.

    With short scales a dequantized convolution is exact in float32: every partial sum is an integer times the
    product of two scales and fits 24 bits. So every device and every order of summation gives the same bits.

    A scale that is larger than a short one by no more than the fraction `slack` is rounded down to it.
    """
    if bits is None:
        return scale
    mantissa, exponent = np.frexp(np.asarray(scale, np.float64))
    steps = np.ldexp(mantissa, bits)
    below = np.floor(steps)
    short = np.ldexp(np.where(steps <= below * (1.0 + slack), below, np.ceil(steps)), exponent - bits)
    largest = np.ldexp(2.0**bits - 1, 128 - bits)
    return np.asarray(np.minimum(short, largest))


def _even_zero_point(lo: np.ndarray, hi: np.ndarray, scale: np.ndarray, qtype: QType) -> np.ndarray:
    """Return that of the two even codes around the code of 0 which cuts less from the range ``[lo, hi]``."""
    place = qtype.quant_min - lo / scale
    below = 2.0 * np.floor(np.rint(place) / 2.0)
    ends = qtype.quant_min + qtype.quant_min % 2, qtype.quant_max - qtype.quant_max % 2
    first, second = (np.clip(code, *ends) for code in (below, below + 2.0))
    cuts = [np.maximum(place - code, code + hi / scale - qtype.quant_max) for code in (first, second)]
    return np.asarray(np.where((cuts[1] < cuts[0]) & (cuts[0] > 0.5), second, first))


def from_range(low: FloatArray, high: FloatArray, scheme: Scheme) -> QParams:
    """Parameters that cover ``[low, high]``, widened to contain 0 so that zero is exact.

    Symmetric: ``scale = max(|low|, |high|) / quant_max`` (the largest magnitude gets the largest code, no
    half-step saturation). Asymmetric: ``scale = (high - low) / (quant_max - quant_min)``. A range of zero width
    gives scale 1 and the zero point of zero. Restricted scales are rounded up, except where rounding down cuts no more than
    one step of 127 or more from the range: [0, 6] keeps its resolution.

    With restricted scales, sums meet ties. QuantizeLinear rounds ``x / scale`` and then adds the zero point, while integer
    kernels (onnxruntime's QLinearAdd, OpenVINO's FakeQuantize) round the sum of both: the same where the zero point is
    even. On grids of 8 bits it therefore is, which moves the range by one step at most.

    Args:
        low: smallest values, float32, shape () or (C,), in blocks that of the scale.
        high: largest values, same shape.
        scheme: of the quantizer.

    Raises:
        ValueError: a symmetric quantizer on a grid without codes above its zero point.
    """
    lo = np.minimum(np.asarray(low, np.float64), 0.0)
    hi = np.maximum(np.asarray(high, np.float64), 0.0)
    qtype, steps = scheme.qtype, scheme.codes_above
    if scheme.symmetric:
        if steps <= 0:
            raise ValueError(f"codes {qtype.quant_min}..{qtype.quant_max} cannot be symmetric")
        scale = np.maximum(-lo, hi) / steps
    else:
        scale = (hi - lo) / steps
    empty = scale == 0
    scale = np.where(empty, 1.0, scale)
    scale = np.clip(scale, SMALLEST_SCALE, np.finfo(np.float32).max)
    # The margin covers float32 rounding of the range's ends.
    slack = 1.001 / steps if steps >= SMALLEST_SLACK_STEPS else 0.0
    scale = shorten(scale, scheme.scale_bits, slack).astype(np.float32)
    if scheme.symmetric:
        zero_point = np.full(scale.shape, qtype.middle, np.int64)
    else:
        centre = qtype.quant_min - np.rint(lo.astype(np.float32) / scale)
        if scheme.scale_bits is not None and steps >= SMALLEST_EVEN_STEPS:
            centre = _even_zero_point(lo, hi, scale, qtype)
        zero_point = np.clip(centre, qtype.quant_min, qtype.quant_max).astype(np.int64)
        zero_point = np.where(empty, np.clip(0, qtype.quant_min, qtype.quant_max), zero_point)
    return QParams.of(np.asarray(scale, np.float32), np.asarray(zero_point, np.int64), scheme)


def bias_scale(activation: FloatArray, weight: FloatArray, shape: tuple[int, ...] | None = None) -> FloatArray:
    """Return the float32 product of two scales; beyond float32, the smallest or the largest number above 0 that it has.

    Args:
        activation: scale of the layer's input, one number.
        weight: scale of its weight, one number or one per channel.
        shape: of the bias's scale; by default that of the product. A product of one element has any shape of one
            element, since quantizers write one number for the bias of a layer with one output channel.
    """
    limits = np.finfo(np.float32)
    with np.errstate(over="ignore", under="ignore"):
        product = np.asarray(np.clip(activation * weight, limits.smallest_subnormal, limits.max), np.float32)
    if shape is None:
        return product
    return product.reshape(shape) if product.size == 1 and not shape else np.broadcast_to(product, shape).copy()
