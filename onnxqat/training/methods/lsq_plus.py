"""LSQ+: the offset of an asymmetric activation is learned beside its scale.

Bhalgat et al., "LSQ+: Improving low-bit quantization through learnable offsets and better initialization", CVPR
Workshops 2020, equations 4 and 5: ``dx'/doffset`` is 1 where ``x`` is clipped and 0 inside; ``dx'/dscale`` is
``quant_min`` below, ``quant_max`` above and the rounding error inside. A file holds an integer zero point, so forward
rounds ``-offset / scale`` to one: training sees what ships.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from onnxqat.bridge.kernels import fastest, reference
from onnxqat.training.methods import lsq
from onnxqat.types import QParams


class Method(lsq.Method):
    """LSQ with a learned offset where the zero point is not in the middle of the grid; elsewhere LSQ.

    Attributes:
        offset: Parameter, float32, shape of the scale; the value of code 0 (equation 1's beta). None where the
            quantizer is symmetric or holds a weight.
    """

    offset: nn.Parameter | None

    def _allocate(self, qparams: QParams) -> None:
        super()._allocate(qparams)
        learned = self.role == "activation" and not self.symmetric and qparams.block_size is None
        self.offset = nn.Parameter(-self.scale.detach() * self.zero_point) if learned else None

    def effective_zero_point(self) -> Tensor:
        """``round(-offset / scale)``, a code of the grid; that of the file where a Relu in front has to stay redundant."""
        if self.offset is None or self.starts_at_zero:
            return self.zero_point
        found = torch.round(-self.offset.detach() / self.effective_scale().detach())
        return found.clamp(self.quant_min, self.quant_max).to(torch.int32)

    def _assign(self, scale: Tensor, zero_point: Tensor) -> None:
        super()._assign(scale, zero_point)
        if self.offset is not None:
            self.offset.copy_(-self.scale * self.zero_point)

    def differentiable(
        self, x: Tensor, scale: Tensor, zero_point: Tensor, axis: int | None, gradient_scale: float
    ) -> Tensor:
        """See the base class."""
        bounds = (self.quant_min, self.quant_max, axis)
        if self.offset is None:
            return super().differentiable(x, scale, zero_point, axis, gradient_scale)
        result = _WithOffset.apply(x, scale, self.offset, zero_point, *bounds, gradient_scale)  # type: ignore[no-untyped-call]
        return cast(Tensor, result)


class _WithOffset(torch.autograd.Function):
    """The forward of the reference, with gradients for scale and offset."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, offset: Tensor, zero_point: Tensor, *settings: Any) -> Tensor:
        del offset  # forward rounds it to the zero point
        return fastest.FakeQuantizeFunction.forward(ctx, x, scale, zero_point, *settings)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, scale, zero_point = ctx.saved_tensors
        quant_min, quant_max, axis = ctx.grid
        zero = reference.along_axis(zero_point, axis, x.ndim).to(torch.float32)
        steps = x.to(torch.float32) / reference.along_axis(scale, axis, x.ndim)
        below, above = steps < quant_min - zero, steps > quant_max - zero
        outside = below | above
        error = torch.where(below, float(quant_min), torch.where(above, float(quant_max), steps.round() - steps))
        grad_x = torch.where(outside, 0.0, grads[0]).to(x.dtype)
        grad_scale = reference.sum_to_scale(error * grads[0], axis) * ctx.gradient_scale
        grad_offset = reference.sum_to_scale(outside * grads[0], axis) * ctx.gradient_scale
        return grad_x, grad_scale, grad_offset, None, None, None, None, None
