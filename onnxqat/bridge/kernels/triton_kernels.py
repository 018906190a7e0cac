"""The kernels behind :mod:`onnxqat.bridge.kernels.triton_fake_quantize`, in Triton's language.

Three things keep the bits of the reference: the division is rounded to nearest (``/`` is approximate in Triton),
halves are rounded to even by adding and taking away 2**23, and no product is followed by a sum that could be
contracted with it, save in the scale's gradient, which is a sum in any case.

Tensors are walked in the order of memory: the channel of the element at offset ``o`` is ``o // stride % channels`` in
every layout without holes.
"""

import triton
import triton.language as tl


@triton.jit
def _round_half_even(v):
    size = tl.abs(v)
    rounded = tl.where(size < 8388608.0, (size + 8388608.0) - 8388608.0, size)
    return tl.where(v < 0, -rounded, rounded) + 0.0  # a zero is positive, as a code is


@triton.jit
def _clamp(v, low, high):
    v = tl.where(v < low, low, v)  # NaN stays NaN
    return tl.where(v > high, high, v)


@triton.jit
def _raised(scale, RAISED_TO: tl.constexpr):
    """Effective value of a learned scale: positive, rounded up to RAISED_TO significant bits; 0: the scale itself."""
    if RAISED_TO > 0:
        scale = tl.where(scale < 1.401298464324817e-45, 1.401298464324817e-45, scale)  # NaN stays NaN
        if RAISED_TO < 24:
            small = scale < 7.888609052210118e-31  # 2**-100: subnormal numbers have no bit in front
            normal = tl.where(small, scale * 1.2676506002282294e30, scale)
            rest: tl.constexpr = (1 << (24 - RAISED_TO)) - 1
            short = ((normal.to(tl.int32, bitcast=True) + rest) & ~rest).to(tl.float32, bitcast=True)
            scale = tl.where(scale == scale, tl.where(small, short * 7.888609052210118e-31, short), scale)
    return scale


@triton.jit
def forward(
    x_ptr,
    y_ptr,
    scale_ptr,
    zero_point_ptr,
    count,
    channels,
    stride,
    QUANT_MIN: tl.constexpr,
    QUANT_MAX: tl.constexpr,
    PER_CHANNEL: tl.constexpr,
    WIDE_GRID: tl.constexpr,
    RELU: tl.constexpr,
    RAISED_TO: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Per tensor and per channel; `count` elements, `stride` of them between two channels."""
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < count
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    if PER_CHANNEL:
        channel = offsets // stride % channels
        scale = tl.load(scale_ptr + channel, mask=mask, other=1.0)
        zero_point = tl.load(zero_point_ptr + channel, mask=mask, other=0)
    else:
        scale = tl.load(scale_ptr)
        zero_point = tl.load(zero_point_ptr)
    scale = _raised(scale, RAISED_TO)
    if RELU:
        x = tl.where(x <= 0, 0.0, x)
    steps = tl.div_rn(x, scale)
    if WIDE_GRID:
        zero = zero_point.to(tl.float64)
        codes = _clamp(_round_half_even(steps).to(tl.float64) + zero, QUANT_MIN, QUANT_MAX)
        steps = (codes - zero).to(tl.float32)
    else:
        zero = zero_point.to(tl.float32)
        steps = _round_half_even(_clamp(steps, QUANT_MIN - zero, QUANT_MAX - zero))
    tl.store(y_ptr + offsets, (steps * scale).to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _gradients(x, grad, scale, zero_point, QUANT_MIN: tl.constexpr, QUANT_MAX: tl.constexpr, RELU: tl.constexpr):
    """The input's gradient, and what each element adds to the scale's."""
    zero = zero_point.to(tl.float32)
    steps = tl.div_rn(tl.where(x <= 0, 0.0, x) if RELU else x, scale)
    clamped = _clamp(steps, QUANT_MIN - zero, QUANT_MAX - zero)
    inside = tl.where(steps == clamped, 1.0, 0.0)
    grad_x = grad * inside
    if RELU:
        grad_x = tl.where(x <= 0, 0.0, grad_x)
    return grad_x, grad * (_round_half_even(clamped) - inside * clamped)


@triton.jit
def backward(
    grad_ptr,
    x_ptr,
    scale_ptr,
    zero_point_ptr,
    grad_x_ptr,
    sums_ptr,
    count,
    factor,
    QUANT_MIN: tl.constexpr,
    QUANT_MAX: tl.constexpr,
    NEEDS_X: tl.constexpr,
    NEEDS_SCALE: tl.constexpr,
    RELU: tl.constexpr,
    RAISED_TO: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Per tensor."""
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < count
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    grad = tl.load(grad_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    scale = _raised(tl.load(scale_ptr), RAISED_TO)
    grad_x, moved = _gradients(x, grad, scale, tl.load(zero_point_ptr), QUANT_MIN, QUANT_MAX, RELU)
    if NEEDS_X:
        tl.store(grad_x_ptr + offsets, grad_x.to(grad_x_ptr.dtype.element_ty), mask=mask)
    if NEEDS_SCALE:
        tl.store(sums_ptr + tl.program_id(0), tl.sum(moved, axis=0) * factor)


@triton.jit
def backward_of_channels(
    grad_ptr,
    x_ptr,
    scale_ptr,
    zero_point_ptr,
    grad_x_ptr,
    sums_ptr,
    channels,
    stride,
    rest,
    blocks,
    factor,
    QUANT_MIN: tl.constexpr,
    QUANT_MAX: tl.constexpr,
    NEEDS_X: tl.constexpr,
    NEEDS_SCALE: tl.constexpr,
    RELU: tl.constexpr,
    RAISED_TO: tl.constexpr,
    OUTERMOST: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Blocks of CHANNELS channels and BLOCK of the `rest` elements of each; no axis lies outside of OUTERMOST ones."""
    block = tl.program_id(0) % blocks
    channel = tl.program_id(0) // blocks * CHANNELS + tl.arange(0, CHANNELS)
    element = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    if OUTERMOST:
        place = element
    else:
        place = element // stride * (channels * stride) + element % stride
    there = channel < channels
    mask = there[:, None] & (element < rest)[None, :]
    offsets = channel.to(tl.int64)[:, None] * stride + place[None, :]
    scale = _raised(tl.load(scale_ptr + channel, mask=there, other=1.0), RAISED_TO)
    zero_point = tl.load(zero_point_ptr + channel, mask=there, other=0)
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    grad = tl.load(grad_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    grad_x, moved = _gradients(x, grad, scale[:, None], zero_point[:, None], QUANT_MIN, QUANT_MAX, RELU)
    if NEEDS_X:
        tl.store(grad_x_ptr + offsets, grad_x.to(grad_x_ptr.dtype.element_ty), mask=mask)
    if NEEDS_SCALE:
        tl.store(sums_ptr + channel * blocks + block, tl.sum(moved, axis=1) * factor, mask=there)
