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

from onnxqat.bridge.kernels import reference, tiled
from onnxqat.bridge.speed import rematerialize

HAS_TRITON = importlib.util.find_spec("triton") is not None
"""It comes with torch for CUDA on Linux."""

_TRITON_TYPES = (torch.float32, torch.float16, torch.bfloat16)


def exporting() -> bool:
    """Check whether a program is exported, which has to run without Triton; on torch 2.6, whether one is compiled."""
    asked = getattr(torch.compiler, "is_exporting", None)
    return torch.compiler.is_compiling() and (asked is None or bool(asked()))


def fuses(x: Tensor) -> bool:
    """Check whether one fused kernel quantizes `x`."""
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
    raised_to: int = 0,
) -> Tensor:
    """`x` on the grid; no gradient of its own. Arguments as in :func:`onnxqat.bridge.kernels.reference.fake_quantize`.

    With `raised_to` the scale is :func:`onnxqat.bridge.kernels.reference.raised` to so many bits, by the same kernel
    where it is a fused one.
    """
    triton: Any = _triton(x)
    if triton is not None:
        how = {"relu": relu, "raised_to": raised_to}
        return cast(Tensor, triton.fake_quantize(x, scale, zero_point, quant_min, quant_max, axis, **how))
    kernels = tiled if tiled.covers(x, quant_min, quant_max, axis) else reference
    scale = reference.raised(scale, raised_to) if raised_to else scale
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
    raised_to: int = 0,
    gradient_scale: float = 1.0,
    needs: tuple[bool, bool] = (True, True),
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients for `x` (its shape and dtype) and `scale` (float32, its shape); None for what `needs` leaves out.

    The gradient of the scale is multiplied by the number `gradient_scale`; raising it has the gradient of the identity.
    """
    grid = (zero_point, quant_min, quant_max, axis)
    triton = _triton(x)
    if triton is not None:
        how = {"relu": relu, "raised_to": raised_to, "factor": gradient_scale, "needs": needs}
        return cast("tuple[Tensor | None, Tensor | None]", triton.fake_quantize_backward(grad, x, scale, *grid, **how))
    kernels = tiled if tiled.covers(x, quant_min, quant_max, axis) else reference
    scale = reference.raised(scale, raised_to) if raised_to else scale
    grad_x, grad_scale = kernels.fake_quantize_backward(grad, x, scale, *grid, relu=relu, needs=needs)
    return grad_x, None if grad_scale is None else grad_scale * gradient_scale


def _forward(
    ctx: Any,
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    *grid: Any,
    gradient_scale: float,
    result: Tensor | None = None,
    **how: Any,
) -> Tensor:
    """Save what backward needs, and return `result`, or compute it where no fused kernel has done so."""
    ctx.save_for_backward(x, scale, zero_point)
    ctx.grid, ctx.gradient_scale, ctx.how = grid, gradient_scale, how
    if result is not None:
        return result
    result = fake_quantize(x, scale, zero_point, *grid, **how)
    if rematerialize.is_on() and any(ctx.needs_input_grad):

        def again(x: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
            return fake_quantize(x, scale, zero_point, *grid, **how)

        rematerialize.note(result, again, x, scale, zero_point)
    return result


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
    needs = (ctx.needs_input_grad[0], ctx.needs_input_grad[1])
    how = {"gradient_scale": ctx.gradient_scale, "needs": needs, **ctx.how}
    return fake_quantize_backward(grad, *ctx.saved_tensors, *ctx.grid, **how)


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
        return _forward(ctx, x, scale, zero_point, quant_min, quant_max, axis, gradient_scale=gradient_scale)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients for `x` and `scale`."""
        return *_backward(ctx, grads[0]), None, None, None, None, None


class _Fused(torch.autograd.Function):
    """:class:`FakeQuantizeFunction` of ``relu(x)``, which is neither stored nor saved, or of a scale that is raised.

    With `result`, that is what forward gives.
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
        relu: bool,
        raised_to: int,
        result: Tensor | None,
    ) -> Tensor:
        grid, how = (quant_min, quant_max, axis), {"relu": relu, "raised_to": raised_to}
        if raised_to and not fuses(x):
            scale, how["raised_to"] = reference.raised(scale, raised_to), 0  # once, not in backward again
        return _forward(ctx, x, scale, zero_point, *grid, gradient_scale=gradient_scale, result=result, **how)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return *_backward(ctx, grads[0]), None, None, None, None, None, None, None, None


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
    raised_to: int = 0,
    result: Tensor | None = None,
) -> Tensor:
    """Differentiable fake-quantize: :func:`fake_quantize` with the gradients of this module.

    Where integer kernels have computed the `result`, that is what it gives.
    """
    arguments = (x, scale, zero_point, quant_min, quant_max, axis, gradient_scale)
    return cast(Tensor, _Fused.apply(*arguments, relu, raised_to, result))  # type: ignore[no-untyped-call]
