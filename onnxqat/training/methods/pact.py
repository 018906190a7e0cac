"""PACT: the clipping value of an activation is learned from what it clips.

Choi et al., "PACT: Parameterized Clipping Activation for Quantized Neural Networks", 2018 (arXiv 1805.06085),
equation 3: ``dx'/dalpha`` is 1 where ``x`` reaches ``alpha`` and 0 elsewhere; the rounding error inside gives nothing.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from onnxqat.bridge.kernels import fastest, reference
from onnxqat.bridge.quantizers.fake_quantize import FakeQuantize
from onnxqat.types import QParams


class Method(FakeQuantize):
    """A learned scale of activations, ``alpha = scale * levels``; weights keep the scale of calibration.

    Initial values come from calibration; the paper starts at a constant and needs a strong decay of ``alpha`` for it.
    Below an asymmetric range, and on both sides of a symmetric one, the clipped values count as those above do.
    """

    def _allocate(self, qparams: QParams) -> None:
        super()._allocate(qparams)
        if self.role != "activation":
            self.scale.requires_grad_(False)

    def gradient_scale(self, x: Tensor) -> float:
        """``1 / levels ** 2``: a step of ``alpha``, expressed in the scale."""
        return 1.0 / float(self.codes_above) ** 2

    def differentiable(
        self, x: Tensor, scale: Tensor, zero_point: Tensor, axis: int | None, gradient_scale: float
    ) -> Tensor:
        """See the base class."""
        bounds = (self.quant_min, self.quant_max, axis)
        result = _Clipping.apply(x, scale, zero_point, *bounds, gradient_scale)  # type: ignore[no-untyped-call]
        return cast(Tensor, result)


class _Clipping(fastest.FakeQuantizeFunction):
    """The forward of the reference; the scale learns from clipped values alone."""

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, scale, zero_point = ctx.saved_tensors
        quant_min, quant_max, axis = ctx.grid
        zero = reference.along_axis(zero_point, axis, x.ndim).to(torch.float32)
        steps = x.to(torch.float32) / reference.along_axis(scale, axis, x.ndim)
        clamped = torch.minimum(torch.maximum(steps, quant_min - zero), quant_max - zero)
        inside = steps == clamped
        grad_x = (grads[0] * inside).to(x.dtype) if ctx.needs_input_grad[0] else None
        grad_scale = None
        if ctx.needs_input_grad[1]:
            clipped = torch.where(inside, 0.0, clamped * grads[0])
            grad_scale = reference.sum_to_scale(clipped, axis) * ctx.gradient_scale
        return grad_x, grad_scale, None, None, None, None, None
