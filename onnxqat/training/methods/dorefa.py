"""DoReFa: weights pass a tanh and are quantized between -1 and 1; activations have a fixed range.

Zhou et al., "DoReFa-Net: Training Low Bitwidth Convolutional Neural Networks with Low Bitwidth Gradients", 2016
(arXiv 1606.06160). Equation 9, weights: ``2 * quantize_k(tanh(w) / (2 * max|tanh(w)|) + 1/2) - 1``, where
``quantize_k`` rounds to multiples of ``1 / (2**k - 1)``. Equation 11, activations: ``quantize_k`` of values that lie
between 0 and 1. The third part, quantized gradients (equation 12), is :mod:`onnxqat.training.execution.gradient_quantization`.

**The grid in the file.** The values of equation 9 are odd multiples of ``1 / (2**k - 1)``: no zero point is a code. So
the file gets odd codes between ``-(2**k - 1)`` and ``2**k - 1``, which take a bit more; the ends of its Clip follow.
Where the storage has no room for them (8 bits in int8, 4 bits in int4) the grid stays that of the file, and the
weights are rounded to all its codes between ``-quant_max`` and ``quant_max`` (:mod:`dorefa_affine` asks for that).
"""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from onnxqat import numerics
from onnxqat.bridge.kernels import reference as kernel
from onnxqat.training.methods import lsq
from onnxqat.types import STORAGE, FloatArray, QParams

SMALLEST = torch.finfo(torch.float32).tiny


class Method(lsq.Method):
    """Weights as in DoReFa with a learned scale; activations keep the range of calibration.

    Three things follow from the start at an exported network. The scale of a weight stands for the gain of the
    BatchNormalization behind it in the paper, which is folded into the weights here, and learns like that. The maximum
    is taken over the weights that share a scale. And where weights are larger than 1, which folding makes them and
    where tanh is flat, tanh sees them divided by the largest.

    Weights on asymmetric grids, in blocks and on grids of floats are quantized as in LSQ.

    Attributes:
        unit: buffer, float32, shape of the scale: what tanh sees as 1, at least 1.
    """

    transforms_weight = True
    odd = True
    unit: Tensor

    def __init__(self, qparams: QParams, **described: Any) -> None:
        super().__init__(qparams, **described)
        self.transforms = (
            self.role == "weight" and self.symmetric and self.scheme.is_integer and self.precision == "float32"
        )
        self._widen(qparams)

    def _widen(self, qparams: QParams) -> None:
        """Make room for odd codes, where they fit: twice as many steps for the same range."""
        levels = 2**self.qtype.bits - 1
        self.odd = self.odd and self.transforms and self.qtype.signed and self.qtype.needs_clip
        self.odd = self.odd and levels <= STORAGE[self.qtype.storage][1]
        if self.odd:
            with torch.no_grad():
                self.scale.mul_(self.quant_max / levels)
            self.qtype = dataclasses.replace(self.qtype, quant_min=-levels, quant_max=levels)
            self.quant_min, self.quant_max = -levels, levels

    def _allocate(self, qparams: QParams) -> None:
        super()._allocate(qparams)
        self.register_buffer("unit", torch.ones_like(self.scale.detach()))
        if self.role != "weight":
            self.scale.requires_grad_(False)
        self._measure()

    def _measure(self) -> None:
        self.unit.copy_((self.scale.detach() * self.levels).clamp_min(1.0))

    def _assign(self, scale: Tensor, zero_point: Tensor) -> None:
        super()._assign(scale, zero_point)
        self._measure()

    @property
    def levels(self) -> int:
        """The largest code."""
        return self.quant_max - self.qtype.middle

    @torch.no_grad()
    def start(self, weight: Tensor) -> None:
        """Give each scale the value with which the quantized weights are nearest to `weight`."""
        if not self.transforms:
            return
        codes = _Codes.apply(self.normalized(weight), torch.ones_like(self.unit), self.levels, self.odd, self.axis, 1.0)  # type: ignore[no-untyped-call]
        power = kernel.sum_to_scale(codes * codes, self.axis)
        best = kernel.sum_to_scale(codes * weight, self.axis) / power.clamp_min(SMALLEST)
        self.scale.copy_(torch.where(best > 0, best, self.scale))

    def normalized(self, weight: Tensor) -> Tensor:
        """``tanh(w) / max|tanh(w)|``, float32, between -1 and 1."""
        bounded = torch.tanh(weight.to(torch.float32) / kernel.along_axis(self.unit, self.axis, weight.ndim))
        others = [d for d in range(weight.ndim) if self.axis is None or d != self.axis % weight.ndim]
        largest = bounded.abs().amax(others, keepdim=True) if others else bounded.abs()
        return bounded / largest.clamp_min(SMALLEST)

    def quantize(self, x: Tensor) -> Tensor:
        """See the base class."""
        if not self.transforms:
            return super().quantize(x)
        settings = (self.levels, self.odd, self.axis, self.gradient_scale(x))
        result = _Codes.apply(self.normalized(x), self.effective_scale(), *settings)  # type: ignore[no-untyped-call]
        return cast(Tensor, result).to(x.dtype)

    def export_weight(self, weight: Tensor) -> Tensor:
        """The quantized weight: its tanh and its odd codes are nothing that the file's quantizer knows."""
        return self.quantize(weight) if self.transforms else weight


def reference(
    x: FloatArray, qparams: QParams, transforms: bool, odd: bool, levels: int, unit: FloatArray
) -> FloatArray:
    """Compute the result of forward in numpy.

    Args:
        x: float32.
        qparams: of the quantizer.
        transforms: whether it holds a weight that passes the tanh.
        odd: whether its codes are odd.
        levels: the largest code.
        unit: see :class:`Method`.
    """
    if not transforms:
        return numerics.fake_quantize(x, qparams)
    bounded = np.tanh(x / numerics.along_axis(unit, qparams.axis, x.ndim), dtype=np.float32)
    others = tuple(d for d in range(x.ndim) if qparams.axis is None or d != qparams.axis % x.ndim)
    largest = np.abs(bounded).max(axis=others, keepdims=True)
    position = bounded / np.maximum(largest, np.float32(SMALLEST))
    half = np.float32(0.5 * levels)
    codes = 2 * np.rint(position * half + half) - levels if odd else np.rint(position * np.float32(levels))
    return np.asarray(codes * numerics.along_axis(qparams.scale, qparams.axis, x.ndim), np.float32)


class _Codes(torch.autograd.Function):
    """Values between -1 and 1 to codes times scale; rounding has the gradient of the identity."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, scale: Tensor, levels: int, odd: bool, axis: int | None, gradient_scale: float
    ) -> Tensor:
        codes = 2.0 * torch.round(x * (0.5 * levels) + 0.5 * levels) - levels if odd else torch.round(x * levels)
        ctx.save_for_backward(codes, scale)
        ctx.settings = (levels, axis, gradient_scale)
        return codes * kernel.along_axis(scale, axis, x.ndim)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        codes, scale = ctx.saved_tensors
        levels, axis, gradient_scale = ctx.settings
        grad_x = grads[0] * (kernel.along_axis(scale, axis, codes.ndim) * levels)
        grad_scale = kernel.sum_to_scale(codes * grads[0], axis) * gradient_scale
        return grad_x, grad_scale, None, None, None, None
