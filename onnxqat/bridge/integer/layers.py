"""Convolutions and matrix products on codes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from onnxqat.bridge.fake_quantize import FakeQuantize
from onnxqat.bridge.integer import sums
from onnxqat.bridge.integer.unit import Unit, steps_of
from onnxqat.bridge.kernels import reference

CONVOLUTIONS = (torch.conv1d, torch.conv2d, torch.conv3d)
PRODUCTS = (functional.linear, torch.matmul)


class Layer(Unit):
    """A layer with an int32 accumulator: sum of products, int32 bias, requantization.

    Its sources are the quantizers of input, weight and, where there is one, bias; the bias comes as it is in front of
    its quantizer, since float32 does not hold every dequantized one.
    """

    def steps(self, x: Tensor, w: Tensor, b: Tensor | None = None, *rest: Any) -> tuple[Tensor, Tensor | None]:
        """See the base class."""
        of_x = self.grid(0, x.ndim)
        total, bound = self._sums(steps_of(x, of_x), steps_of(w, self.grid(1, w.ndim)), rest)
        of_outputs = self._along(self.grid(1, 0).scale, total.ndim)
        scale = of_x.scale * of_outputs
        floating = total.float() * scale if torch.is_grad_enabled() else None
        total = total.detach()
        if b is not None:
            total, bound = self._with_bias(total, b, bound)
            floating = None if floating is None else floating + self._along(self.sources[2](b), total.ndim)
        if bound > self.arithmetic.accumulator.largest:
            total = self.arithmetic.accumulator.hold(total, self.tensor, traced=torch.compiler.is_compiling())
        if self.quantizer is None:
            return total.float() * scale, floating
        return self.arithmetic.requantize(total, of_x.scale, of_outputs, self.output(total.ndim)), floating

    def plain(self, x: Tensor, w: Tensor, b: Tensor | None = None, *rest: Any) -> Tensor:
        """See the base class."""
        bias = None if b is None else self.sources[2](b)
        return self.operation(x, w, bias, *rest) if rest or bias is not None else self.operation(x, w)

    def active(self) -> bool:
        """See the base class; a weight of which each output channel has one scale."""
        axis = self.sources[1].axis
        known = axis is None or (axis in (1, -1) if self.operation is torch.matmul else axis == 0)
        return known and super().active()

    def _sums(self, x: Tensor, w: Tensor, rest: tuple[Any, ...]) -> tuple[Tensor, float]:
        reach = (_reach(self.sources[0]), _reach(self.sources[1]))
        if self.operation in CONVOLUTIONS:
            axes = (1, 1) if rest[-1] == 1 else None  # the last argument is the number of groups
            return sums.in_parts(lambda a, b: self.operation(a, b, None, *rest), x, w, axes, reach)
        summed = w.ndim - (1 if self.operation is functional.linear else 2)
        return sums.in_parts(self.operation, x, w, (x.ndim - 1, summed), reach)

    def _with_bias(self, total: Tensor, bias: Tensor, bound: float) -> tuple[Tensor, float]:
        """`total` and its bound with the codes of `bias`; in float64 where float32 may not hold them."""
        quantizer = self.sources[2]
        codes = self._along(_codes(quantizer, bias), total.ndim)
        traced = torch.compiler.is_compiling()
        bound += float(quantizer.quant_max) if traced else float(codes.abs().max())
        return (total + codes.float() if bound < sums.EXACT else total.double() + codes), bound

    def _along(self, values: Tensor, ndim: int) -> Tensor:
        """`values` of output channels, or one value, so that they broadcast with the result."""
        axis = 1 if self.operation in CONVOLUTIONS else ndim - 1
        return reference.along_axis(values, axis if values.ndim else None, ndim)


@torch.no_grad()
def _codes(bias: FakeQuantize, values: Tensor) -> Tensor:
    """The int32 codes of a bias, in float64."""
    grid = Unit.grid_of(bias, values.ndim)
    codes: Tensor = (values.float() / grid.scale).round()
    return codes.double().clamp(bias.quant_min, bias.quant_max)


def _reach(quantizer: FakeQuantize) -> float:
    """The largest magnitude of a step; the zero point lies within the grid, and of symmetric grids in its middle."""
    whole = quantizer.quant_max - quantizer.quant_min
    return float(
        max(-quantizer.quant_min, quantizer.quant_max) if quantizer.symmetric and quantizer.quant_min < 0 else whole
    )
