"""AdaRound: whether a weight is rounded up or down is learned; nothing else about it.

Nagel et al., "Up or Down? Adaptive Rounding for Post-Training Quantization", ICML 2020. In training a weight is
``scale * clamp(floor(w / scale) + h(v))`` with the rectified sigmoid ``h(v) = clamp(1.2 * sigmoid(v) - 0.1, 0, 1)``
(equations 21 to 23). The penalty ``sum(1 - |2 h(v) - 1| ** beta)`` (equation 24) drives each ``h`` to 0 or 1 as
``beta`` falls.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from onnxqat import numerics
from onnxqat.bridge.kernels import grids
from onnxqat.bridge.kernels import reference as kernel
from onnxqat.training.methods import lsq
from onnxqat.types import FloatArray, QParams

STRETCH = (-0.1, 1.1)
"""Ends that the sigmoid is stretched to before it is cut to 0..1 (gamma and zeta)."""

BETA = (20.0, 2.0)
"""Exponents of the penalty, when it begins and at the end."""

WARM_UP = 0.2
"""Part of the run without a penalty."""

WEIGHT = 0.01
"""Factor of the penalty per weight of the network."""


class Method(lsq.Method):
    """Weights with a learned rounding and the scale of calibration; activations as in LSQ.

    In eval mode and in the file every ``h`` is 0 or 1. The master weight gets no gradient: it says between which two
    codes there is a choice.

    Attributes:
        rounding: Parameter ``v``, float32, shape of the weight; None for activations, for weights on grids of floats,
            and before :meth:`start`.
    """

    transforms_weight = True
    freezes_weights = True
    rounding: nn.Parameter | None

    def _allocate(self, qparams: QParams) -> None:
        super()._allocate(qparams)
        self.rounding = None
        if self.role == "weight":
            self.scale.requires_grad_(False)

    @torch.no_grad()
    def start(self, weight: Tensor) -> None:
        """Begin with an ``h`` that leaves every weight as it is."""
        if self.role != "weight" or self.qtype.is_float or self.precision != "float32":
            return
        steps = weight.to(torch.float32) / self._broadcast(self.effective_scale(), weight)
        low, high = STRETCH
        part = (steps - steps.floor() - low) / (high - low)
        self.rounding = nn.Parameter(torch.log(part / (1.0 - part)))

    def share(self) -> Tensor:
        """``h``: the part of a step by which each weight is rounded up, 0 to 1; whole numbers in eval mode."""
        assert self.rounding is not None
        if not self.training:
            return (self.rounding >= 0).to(torch.float32)
        low, high = STRETCH
        return (torch.sigmoid(self.rounding) * (high - low) + low).clamp(0.0, 1.0)

    def quantize(self, x: Tensor) -> Tensor:
        """See the base class."""
        return super().quantize(x) if self.rounding is None else self._rounded(x, self.share())

    def export_weight(self, weight: Tensor) -> Tensor:
        """The rounded weight."""
        if self.rounding is None:
            return weight
        return self._rounded(weight, (self.rounding.detach() >= 0).to(torch.float32))

    def _rounded(self, x: Tensor, share: Tensor) -> Tensor:
        scale = self._broadcast(self.effective_scale().detach(), x)
        zero = self._broadcast(self.effective_zero_point(), x).to(torch.float32)
        steps = torch.floor(x.detach().to(torch.float32) / scale) + share
        steps = (steps + zero).clamp(self.quant_min, self.quant_max) - zero
        return (steps * scale).to(x.dtype)

    def _broadcast(self, values: Tensor, x: Tensor) -> Tensor:
        """A scale or zero point so that it broadcasts with `x`."""
        if self.block_size is None or self.axis is None:
            return kernel.along_axis(values, self.axis, x.ndim)
        rows = grids.scale_of_rows(values, self.axis)[:, None].expand(-1, self.block_size)
        return grids.from_rows(rows.contiguous(), x, self.axis, self.block_size)

    def penalty(self, progress: float) -> Tensor | None:
        """Equation 24 with ``beta`` along a cosine from 20 to 2, nothing in the first fifth of the run."""
        if self.rounding is None or progress < WARM_UP:
            return None
        done = (progress - WARM_UP) / (1.0 - WARM_UP)
        beta = BETA[1] + 0.5 * (BETA[0] - BETA[1]) * (1.0 + math.cos(math.pi * done))
        low, high = STRETCH
        share = (torch.sigmoid(self.rounding) * (high - low) + low).clamp(0.0, 1.0)
        return WEIGHT * (1.0 - (2.0 * share - 1.0).abs().pow(beta)).sum()


def reference(x: FloatArray, qparams: QParams, rounding: FloatArray | None) -> FloatArray:
    """Compute in numpy the result of forward in eval mode; `rounding` is that of :class:`Method`."""
    if rounding is None:
        return numerics.fake_quantize(x, qparams)
    scale, zero = (numerics.spread(v, qparams, x.shape) for v in (qparams.scale, qparams.zero_point))
    codes = np.floor(x / scale) + (rounding >= 0) + zero
    clipped = np.clip(codes, qparams.qtype.quant_min, qparams.qtype.quant_max) - zero
    return np.asarray(clipped.astype(np.float32) * scale, np.float32)
