"""Fake-quantize by the fastest kernel that there is for a tensor; all give the same bits.

====================================================  =======================================================
CUDA, Triton can be imported                          :mod:`onnxqat.bridge.kernels.triton_fake_quantize`
CPU, large, not traced by a compiler                  :mod:`onnxqat.bridge.kernels.tiled`
everything else; exported programs, on every device   :mod:`onnxqat.bridge.kernels.reference`
====================================================  =======================================================

The scale's gradient is a sum, which kernels add up in different orders: equal within float32 rounding.
"""

from __future__ import annotations

import importlib.util
from types import ModuleType
from typing import Any, cast

import torch
from torch import Tensor

from onnxqat.bridge import rematerialize
from onnxqat.bridge.kernels import reference, tiled

HAS_TRITON = importlib.util.find_spec("triton") is not None
"""It comes with torch for CUDA on Linux."""

_TRITON_TYPES = (torch.float32, torch.float16, torch.bfloat16)


def exporting() -> bool:
    """Whether a program is exported, which has to run where Triton is not; torch 2.6 does not tell."""
    asked = getattr(torch.compiler, "is_exporting", None)
    return torch.compiler.is_compiling() and (asked is None or bool(asked()))


def fuses(x: Tensor) -> bool:
    """Whether `x` is quantized by one fused kernel."""
    return HAS_TRITON and x.is_cuda and x.dtype in _TRITON_TYPES and not exporting()


def _triton(x: Tensor) -> ModuleType | None:
    """The fused kernels where `x` has them; imported here, as that takes a second that a CPU need not wait for."""
    if not fuses(x):
        return None
    from onnxqat.bridge.kernels import triton_fake_quantize

    return triton_fake_quantize


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
    """`x` on the grid; no gradient of its own. Arguments as in :func:`onnxqat.bridge.kernels.reference.fake_quantize`."""
    kernels: Any = _triton(x)
    if kernels is None:
        kernels = tiled if tiled.covers(x, quant_min, quant_max, axis) else reference
    return cast(Tensor, kernels.fake_quantize(x, scale, zero_point, quant_min, quant_max, axis, relu=relu))


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
    gradient_scale: float = 1.0,
    needs: tuple[bool, bool] = (True, True),
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients for `x` (its shape and dtype) and `scale` (float32, its shape); None for what `needs` leaves out.

    The gradient of the scale is multiplied by the number `gradient_scale`.
    """
    arguments = (grad, x, scale, zero_point, quant_min, quant_max, axis)
    triton = _triton(x)
    if triton is not None:
        found = triton.fake_quantize_backward(*arguments, relu=relu, factor=gradient_scale, needs=needs)
        return cast("tuple[Tensor | None, Tensor | None]", found)
    kernels = tiled if tiled.covers(x, quant_min, quant_max, axis) else reference
    grad_x, grad_scale = kernels.fake_quantize_backward(*arguments, relu=relu, needs=needs)
    return grad_x, None if grad_scale is None else grad_scale * gradient_scale


def _forward(
    ctx: Any, relu: bool, x: Tensor, scale: Tensor, zero_point: Tensor, *grid: Any, gradient_scale: float
) -> Tensor:
    ctx.save_for_backward(x, scale, zero_point)
    ctx.grid, ctx.gradient_scale, ctx.relu = grid, gradient_scale, relu
    result = fake_quantize(x, scale, zero_point, *grid, relu=relu)
    if rematerialize.is_on() and any(ctx.needs_input_grad):

        def again(x: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
            return fake_quantize(x, scale, zero_point, *grid, relu=relu)

        rematerialize.note(result, again, x, scale, zero_point)
    return result


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    needs = (ctx.needs_input_grad[0], ctx.needs_input_grad[1])
    how = {"relu": ctx.relu, "gradient_scale": ctx.gradient_scale, "needs": needs}
    return *fake_quantize_backward(grad, *ctx.saved_tensors, *ctx.grid, **how), None, None, None, None, None


class FakeQuantizeFunction(torch.autograd.Function):
    """Fake-quantize with the straight-through and LSQ gradients; saves `x`, `scale` and `zero_point` only.

    The gradient of the scale is multiplied by the number `gradient_scale`.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        scale: Tensor,
        zero_point: Tensor,
        quant_min: int,
        quant_max: int,
        axis: int | None,
        gradient_scale: float,
    ) -> Tensor:
        """`x` on the grid, in the dtype of `x`."""
        return _forward(ctx, False, x, scale, zero_point, quant_min, quant_max, axis, gradient_scale=gradient_scale)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients for `x` and `scale`."""
        return _backward(ctx, grads[0])


class _OfRelu(torch.autograd.Function):
    """:class:`FakeQuantizeFunction` of ``relu(x)``, which is neither stored nor saved."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        scale: Tensor,
        zero_point: Tensor,
        quant_min: int,
        quant_max: int,
        axis: int | None,
        gradient_scale: float,
    ) -> Tensor:
        return _forward(ctx, True, x, scale, zero_point, quant_min, quant_max, axis, gradient_scale=gradient_scale)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return _backward(ctx, grads[0])


def apply(
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    quant_min: int,
    quant_max: int,
    axis: int | None,
    gradient_scale: float = 1.0,
    *,
    relu: bool = False,
) -> Tensor:
    """Differentiable fake-quantize: :func:`fake_quantize` with the gradients of this module."""
    function: Any = _OfRelu if relu else FakeQuantizeFunction
    return cast(Tensor, function.apply(x, scale, zero_point, quant_min, quant_max, axis, gradient_scale))
