"""EMA: ranges follow the data while training; nothing about them is learned.

Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference", CVPR
2018, section 3.1: the range of a weight is that of its values, the range of an activation the exponential moving
average of what each batch spans. Ranges start as calibrated, so there is no delay before quantization sets in.
"""

from __future__ import annotations

import torch
from torch import Tensor, distributed

from onnxqat import numerics
from onnxqat.bridge.kernels import grids, reference
from onnxqat.training.methods import fixed
from onnxqat.types import QParams

DECAY = 0.99
"""Share of an average that stays at each step."""

_SMALLEST_SCALE = float(numerics.SMALLEST_SCALE)  # a compiler of torch 2.6 takes no number of numpy


class Method(fixed.Method):
    """Scale and zero point are set in each step of training and stay in eval mode; the straight-through gradient.

    Attributes:
        low: buffer, float32, shape of the scale: average of the smallest values.
        high: buffer, the same of the largest.
    """

    low: Tensor
    high: Tensor

    def _allocate(self, qparams: QParams) -> None:
        super()._allocate(qparams)
        self.register_buffer("low", torch.zeros_like(self.observed_min))
        self.register_buffer("high", torch.zeros_like(self.observed_max))
        self._cover()

    def _cover(self) -> None:
        """Set the averages to what scale and zero point cover."""
        zero = self.zero_point.to(torch.float32)
        scale = self.scale.detach()
        self.low.copy_((self.quant_min - zero) * scale)
        self.high.copy_((self.quant_max - zero) * scale)

    def _assign(self, scale: Tensor, zero_point: Tensor) -> None:
        super()._assign(scale, zero_point)
        self._cover()

    def quantize(self, x: Tensor) -> Tensor:
        """See the base class."""
        if self.training and x.numel():
            self._update_range(x.detach().to(torch.float32))
        return super().quantize(x)

    @torch.no_grad()
    def _update_range(self, x: Tensor) -> None:
        low, high = self._batch_range(x)
        if distributed.is_available() and distributed.is_initialized() and self.role == "activation":
            distributed.all_reduce(low, distributed.ReduceOp.MIN)
            distributed.all_reduce(high, distributed.ReduceOp.MAX)
        weight = 1.0 - DECAY if self.role == "activation" else 1.0
        self.low.lerp_(low, weight)
        self.high.lerp_(high, weight)
        scale, zero_point = self._grid_of_range()
        self.scale.copy_(scale)
        self.zero_point.copy_(zero_point)

    def _batch_range(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.axis is None:
            low, high = torch.aminmax(x)
        elif self.block_size is None:
            others = [d for d in range(x.ndim) if d != self.axis % x.ndim]
            low, high = (x.amin(others), x.amax(others)) if others else (x.clone(), x.clone())
        else:
            shape = self.scale.movedim(self.axis, -1).shape
            rows = torch.aminmax(grids.to_rows(x, self.axis, self.block_size), dim=-1)
            low, high = (end.reshape(shape).movedim(-1, self.axis) for end in rows)
        return low.contiguous(), high.contiguous()

    def _grid_of_range(self) -> tuple[Tensor, Tensor]:
        """Return scale and zero point that cover the averages: :func:`onnxqat.numerics.from_range` on the device."""
        low, high = self.low.clamp(max=0.0), self.high.clamp(min=0.0)
        scale = (torch.maximum(-low, high) if self.symmetric else high - low) / self.codes_above
        scale = torch.where(scale > 0, scale, 1.0).clamp_min(_SMALLEST_SCALE)
        if self.scale_bits is not None:
            scale = reference.shorten(scale, self.scale_bits)
        if self.symmetric:
            return scale, torch.full_like(self.zero_point, self.qtype.middle)
        found = (self.quant_min - torch.round(low / scale)).clamp(self.quant_min, self.quant_max)
        return scale, found.to(torch.int32)
