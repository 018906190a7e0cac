"""Fake-quantize in plain torch: the same bits as :mod:`onnxqat.numerics` and onnxruntime, on every device.

``q = clamp(round_half_even(x / scale) + zero_point, quant_min, quant_max)``, ``x' = (q - zero_point) * scale``:
float32, a true division. ``torch.fake_quantize_*`` multiplies by ``1 / scale`` and so gives other codes at ties.
NaN stays NaN, so that a diverged model does not look alive.

The gradient is that of Esser et al., "Learned Step Size Quantization" (ICLR 2020), equations 3 and 5. With
``v = x / scale``, ``low = quant_min - zero_point`` and ``high = quant_max - zero_point``::

    dx'/dx     = 1 where low <= v <= high, else 0                      (straight-through)
    dx'/dscale = round(v) - v there, low below it, high above it

Every operation is elementwise on explicit float32 tensors, which autocast leaves alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

WIDE = 2**24
"""Grids of this many codes or more are computed in float64: float32 does not hold every code."""

SMALLEST_SCALE = 2.0**-149
"""Smallest positive float32: what a learned scale that has reached 0 counts as."""

ALL_BITS = 24
"""Significant bits of a float32."""


def along_axis(values: Tensor, axis: int | None, ndim: int) -> Tensor:
    """View per-channel `values` of shape (C,) so that they broadcast along `axis` of an `ndim`-dimensional tensor."""
    if axis is None:
        return values
    axis %= ndim
    return values.reshape([1] * axis + [-1] + [1] * (ndim - 1 - axis))


def sum_to_scale(values: Tensor, axis: int | None) -> Tensor:
    """Sum `values` over every dimension but `axis` (over all of them without one): shape () or (C,)."""
    if axis is None:
        return values.sum()
    others = [d for d in range(values.ndim) if d != axis % values.ndim]
    return values.sum(others) if others else values


def fake_quantize(
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    quant_min: int,
    quant_max: int,
    axis: int | None,
    *,
    relu: bool = False,
) -> Tensor:
    """`x` on the grid; no gradient of its own (see :mod:`onnxqat.bridge.kernels.fastest`).

    Args:
        x: any floating dtype and shape; computed in float32, returned in the dtype of `x`.
        scale: float32, shape () or (C,), > 0.
        zero_point: integer, same shape.
        quant_min: smallest code.
        quant_max: largest code.
        axis: channel axis, None per tensor.
        relu: quantize ``relu(x)``, in the same pass where the kernel can.
    """
    if relu:
        x = torch.relu(x)
    s = along_axis(scale, axis, x.ndim)
    zero = along_axis(zero_point, axis, x.ndim)
    steps = (x.to(torch.float32) / s).round_()
    if quant_max - quant_min < WIDE:
        zero = zero.to(torch.float32)
        steps = steps.add_(zero).clamp_(quant_min, quant_max).sub_(zero)
    else:
        zero = zero.to(torch.float64)
        steps = steps.to(torch.float64).add_(zero).clamp_(quant_min, quant_max).sub_(zero).to(torch.float32)
    return steps.mul_(s).to(x.dtype)


def fake_quantize_backward(
    grad: Tensor,
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    quant_min: int,
    quant_max: int,
    axis: int | None,
    *,
    relu: bool = False,
    needs: tuple[bool, bool] = (True, True),
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients for `x` (its shape and dtype) and `scale` (float32, its shape); None for what `needs` leaves out."""
    if relu:
        grid = (quant_min, quant_max, axis)
        of_relu, grad_scale = fake_quantize_backward(grad, torch.relu(x), scale, zero_point, *grid, needs=needs)
        return None if of_relu is None else torch.ops.aten.threshold_backward(of_relu, x, 0), grad_scale
    s = along_axis(scale, axis, x.ndim)
    zero = along_axis(zero_point, axis, x.ndim).to(torch.float32)
    steps = x.to(torch.float32) / s
    clamped = torch.minimum(torch.maximum(steps, quant_min - zero), quant_max - zero)
    # 1.0 or 0.0 in place of a boolean: on CPU a masked fill costs as much as all the other operations together.
    inside = steps.eq_(clamped)
    grad_x = (grad * inside).to(x.dtype) if needs[0] else None
    grad_scale = None
    if needs[1]:
        passed = inside.mul_(clamped)  # `clamped` is finite where `steps` may not be
        grad_scale = sum_to_scale(clamped.round_().sub_(passed).mul_(grad), axis)
    return grad_x, grad_scale


def shorten(scale: Tensor, bits: int) -> Tensor:
    """`scale` rounded up to `bits` significant bits (:func:`onnxqat.numerics.shorten`), with the gradient of identity."""
    values = scale.detach()
    mantissa, exponent = torch.frexp(values)
    # Before torch 2.13 ldexp multiplies by a float32 power of two, which has to be one: 2**-149 to 2**127.
    short = torch.ldexp(torch.ceil(mantissa * 2.0**bits) * 2.0 ** (1 - bits), exponent - 1)
    return scale + (short - values) if scale.requires_grad and torch.is_grad_enabled() else short


def raised(scale: Tensor, bits: int) -> Tensor:
    """Return the effective value of a learned `scale`: at least :data:`SMALLEST_SCALE`, `bits` bits, no gradient."""
    positive = scale.detach().clamp(min=SMALLEST_SCALE)
    return positive if bits >= ALL_BITS else shorten(positive, bits)
