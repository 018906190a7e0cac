"""DSQ: the staircase has the gradient of a soft staircase.

Gong et al., "Differentiable Soft Quantization", ICCV 2019. Inside a step, with ``u`` the distance from its middle in
steps, the soft staircase is ``tanh(k * u) / (2 * tanh(k / 2))`` (equation 2), and its derivative takes the place of 1.
``k`` follows from ``alpha``, one minus the height of the tanh at the step's end (equation 7).
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor

from onnxqat.bridge.kernels import fastest, reference
from onnxqat.training.methods import lsq

ALPHA = 0.4
"""Softness. The paper learns it a layer; MQBench and this file keep the value that it starts from."""

_SHARPNESS = math.log(2.0 / ALPHA - 1.0)


class Method(lsq.Method):
    """Weights and activations with the soft gradient; the scale learns as in LSQ, in place of the two clip values."""

    def differentiable(
        self, x: Tensor, scale: Tensor, zero_point: Tensor, axis: int | None, gradient_scale: float
    ) -> Tensor:
        """See the base class."""
        bounds = (self.quant_min, self.quant_max, axis)
        result = _SoftStaircase.apply(x, scale, zero_point, *bounds, gradient_scale)  # type: ignore[no-untyped-call]
        return cast(Tensor, result)


class _SoftStaircase(fastest.FakeQuantizeFunction):
    """The forward of the reference; the input's gradient is that of the soft staircase."""

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, scale, zero_point = ctx.saved_tensors
        needs = (ctx.needs_input_grad[0], ctx.needs_input_grad[1])
        grad_x, grad_scale = fastest.fake_quantize_backward(
            grads[0], x, scale, zero_point, *ctx.grid, gradient_scale=ctx.gradient_scale, needs=needs
        )
        if grad_x is not None:
            steps = x.to(torch.float32) / reference.along_axis(scale, ctx.grid[2], x.ndim)
            # The middle of a step of the soft staircase is the edge between two codes.
            distance = steps - torch.floor(steps) - 0.5
            height = torch.tanh(_SHARPNESS * distance)
            slope = (0.5 * _SHARPNESS / (1.0 - ALPHA)) * (1.0 - height * height)
            grad_x = (grad_x * slope).to(x.dtype)
        return grad_x, grad_scale, None, None, None, None, None
