"""Convolutions and matrix products on codes."""

from __future__ import annotations

import abc
import functools
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from onnxqat.arithmetic import Grid
from onnxqat.arithmetic._arrays import Array, double, product, single
from onnxqat.bridge.integer import numpy_sums, sums, tiles
from onnxqat.bridge.integer.reached import Reached
from onnxqat.bridge.integer.unit import Unit, as_numpy, steps_of
from onnxqat.bridge.kernels.reference import SMALLEST_SCALE
from onnxqat.bridge.lowering.linear import biased_product
from onnxqat.bridge.quantizers.fake_quantize import FakeQuantize

CONVOLUTIONS = (torch.conv1d, torch.conv2d, torch.conv3d)
PRODUCTS = (functional.linear, torch.matmul, biased_product)


class Layer(Unit):
    """A layer with an int32 accumulator: sum of products, int32 bias, requantization.

    Its sources are the quantizers of input, weight and, where there is one, bias; the bias comes as it is in front of
    its quantizer, since float32 does not hold every dequantized one.

    Attributes:
        reached: record of sums and inputs so far; None where nobody asked.
    """

    reached: Reached | None = None

    def exact(self, x: Tensor, w: Tensor, b: Tensor | None = None, *rest: Any) -> tuple[Tensor, Tensor | None]:
        """See the base class."""
        if not torch.is_grad_enabled():
            return self._kernel_and_float(x, w, b, rest, gradient=False)[0], None
        # A derived quantizer passes the gradient through, and nothing needs the value that it gives.
        bias = b if b is None or self.sources[2].derived else self.sources[2](b)
        with torch.no_grad():
            result, *floating = self._kernel_and_float(x, w, b, rest, gradient=True)
        return result, self.traced(floating[0] if floating else result, x, w, bias, *rest)

    @abc.abstractmethod
    def summed(
        self, x: Tensor, w: Tensor, bias: tuple[Tensor, float] | None, rest: tuple[Any, ...]
    ) -> tuple[Tensor, float]:
        """Sums of products of steps and a bound on them, see :func:`sums.in_parts`."""

    @abc.abstractmethod
    def traced(self, floating: Tensor, x: Tensor, w: Tensor, bias: Tensor | None, *rest: Any) -> Tensor:
        """`floating`, which is the operator's result, with the gradients of the operator."""

    def _kernel_and_float(
        self, x: Tensor, w: Tensor, b: Tensor | None, rest: tuple[Any, ...], *, gradient: bool
    ) -> tuple[Tensor, ...]:
        """The dequantized result of the kernel and, for a gradient, that of the float operator."""
        of_x, of_w = self.grid(0, x.ndim), self.grid(1, w.ndim)
        bias = None
        if b is not None:
            codes = self._bias(b.detach(), of_x.scale, of_w.scale)
            most = float(torch.iinfo(torch.int32).max) if torch.compiler.is_compiling() else float(codes.abs().max())
            bias = (codes, most)
        steps = steps_of(x, of_x)
        if self.reached is not None:
            self.reached.add_steps(steps.detach().cpu().numpy(), 1 if self.operation in CONVOLUTIONS else -1)
        total, bound = self.summed(steps, steps_of(w, of_w), bias, rest)
        holds = bound <= self.arithmetic.accumulator.largest
        output = None if self.quantizer is None else self.output(0)
        finish = functools.partial(self.finished, of_x.scale, output, holds=holds, gradient=gradient)
        axis = 1 if self.operation in CONVOLUTIONS else total.ndim - 1
        scale = of_w.scale.reshape(-1) if of_w.scale.ndim else of_w.scale
        return tiles.by_channel(finish, axis, total, scale, results=2 if gradient and output is not None else 1)

    def in_numpy(self, x: Array, w: Array, b: Array | None = None, *rest: Any) -> Array:
        """See the base class."""
        grids = [as_numpy(self.grid(index, array.ndim)) for index, array in enumerate((x, w))]
        steps_of_x, steps_of_w = ((a / grid.scale).round() for a, grid in zip((x, w), grids, strict=True))
        if self.reached is not None:
            self.reached.add_steps(steps_of_x, 1 if self.operation in CONVOLUTIONS else -1)
        total = numpy_sums.summed(self.operation, steps_of_x, steps_of_w, rest)
        along = [-1, *[1] * (total.ndim - 2 if self.operation in CONVOLUTIONS else 0)]
        if b is not None:
            total = total + self._bias(b, *(grid.scale for grid in grids)).reshape(along)
        output = None if self.quantizer is None else as_numpy(self.output(0))
        return self.finished(grids[0].scale, output, total, np.reshape(grids[1].scale, along), holds=False)[0]

    def _bias(self, values: Array, activation: Array, weight: Array) -> Array:
        """The bias in units of the sums, whole numbers in float64.

        A bias of int32 codes is one by its codes, whatever scale is beside them, as in onnxruntime. One of fewer bits has
        a grid of its own, such as that of chips that shift it in front of the addition.
        """
        quantizer = self.sources[2]
        unit = (activation * weight.reshape(-1)).clip(SMALLEST_SCALE, None)
        if quantizer.derived:
            return _codes(quantizer, values, unit)
        held = quantizer.effective_scale().detach()
        scale: Array = held if isinstance(activation, Tensor) else held.numpy()
        codes = _codes(quantizer, values, scale)
        return codes if quantizer.qtype.storage == "int32" else (codes * (double(scale) / double(unit))).round()

    def finished(
        self,
        activation: Array,
        output: Grid | None,
        total: Array,
        weight: Array,
        *,
        holds: bool,
        gradient: bool = False,
        into: Sequence[Array | None] = (None, None),
    ) -> tuple[Array, ...]:
        """Return the dequantized result of the kernel for sums, and for a gradient also that of the float operator.

        Where the kernel gives float, these are the same array, returned once.

        Args:
            activation: scale of the input.
            output: grid of the result; None where the kernel gives float.
            total: sums of products of steps and bias.
            weight: scales of the weight, of a shape that broadcasts with `total`.
            holds: whether the accumulator holds every sum that there can be.
            gradient: whether the float operator's result is wanted.
            into: arrays that take the results.
        """
        if self.reached is not None:
            self.reached.add_sums(total)
        if not holds:
            total = self.arithmetic.accumulator.hold(total, self.tensor, traced=torch.compiler.is_compiling())
        if output is None:
            return (product(single(total), activation * weight, into[0]),)
        steps = self.requantized(total, activation, weight, output)
        result = product(steps, output.scale, into[0])
        return (result, product(single(total), activation * weight, into[1])) if gradient else (result,)

    def requantized(self, total: Array, activation: Array, weight: Array, output: Grid) -> Array:
        """Steps of the result, see :meth:`onnxqat.arithmetic.Arithmetic.requantize`."""
        return self.arithmetic.requantize(total, activation, weight, output)

    def plain(self, x: Tensor, w: Tensor, b: Tensor | None = None, *rest: Any) -> Tensor:
        """See the base class."""
        bias = None if b is None else self.sources[2](b)
        return self.operation(x, w, bias, *rest) if rest or bias is not None else self.operation(x, w)

    def active(self) -> bool:
        """See the base class; a weight of which each output channel has one scale."""
        axis = self.sources[1].axis
        columns = self.operation in PRODUCTS and self.operation is not functional.linear
        known = axis is None or (axis in (1, -1) if columns else axis == 0)
        return known and super().active()


class Convolution(Layer):
    """Conv."""

    def summed(
        self, x: Tensor, w: Tensor, bias: tuple[Tensor, float] | None, rest: tuple[Any, ...]
    ) -> tuple[Tensor, float]:
        """See the base class."""
        axes = (1, 1) if rest[-1] == 1 else None  # the last argument is the number of groups
        reach = (_largest_step(self.sources[0]), _largest_step(self.sources[1]))
        return sums.in_parts(lambda a, b, c: self.operation(a, b, c, *rest), x, w, bias, axes, reach)

    def traced(self, floating: Tensor, x: Tensor, w: Tensor, bias: Tensor | None, *rest: Any) -> Tensor:
        """See the base class."""
        return cast(Tensor, _Convolution.apply(floating, x, w, bias, *rest))  # type: ignore[no-untyped-call]


class _Convolution(torch.autograd.Function):
    """Known result of a convolution, with the convolution's gradients."""

    @staticmethod
    def forward(ctx: Any, floating: Tensor, x: Tensor, w: Tensor, bias: Tensor | None, *rest: Any) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.rest, ctx.sizes = rest, None if bias is None else list(bias.shape)
        return floating

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, w = ctx.saved_tensors
        *where, groups = ctx.rest
        settings = (*where, False, [0] * (x.ndim - 2), groups)  # not transposed
        mask = list(ctx.needs_input_grad[1:4])
        found = torch.ops.aten.convolution_backward(grads[0], x, w, ctx.sizes, *settings, mask)
        return None, *found, *(None for _ in ctx.rest)


class Matrix(Layer):
    """Gemm and MatMul."""

    def summed(
        self, x: Tensor, w: Tensor, bias: tuple[Tensor, float] | None, rest: tuple[Any, ...]
    ) -> tuple[Tensor, float]:
        """See the base class."""
        axis = w.ndim - (1 if self.operation is functional.linear else 2)
        reach = (_largest_step(self.sources[0]), _largest_step(self.sources[1]))
        return sums.in_parts(self._product, x, w, bias, (x.ndim - 1, axis), reach)

    def traced(self, floating: Tensor, x: Tensor, w: Tensor, bias: Tensor | None, *rest: Any) -> Tensor:
        """See the base class; matrix products are small beside convolutions, so this one is computed again."""
        return self._product(x, w, bias)

    def requantized(self, total: Array, activation: Array, weight: Array, output: Grid) -> Array:
        """See the base class; a weight makes it a fully connected layer."""
        stored = self.sources[1].role == "weight"
        finish = self.arithmetic.requantize_matrix if stored else self.arithmetic.requantize
        return finish(total, activation, weight, output)

    def _product(self, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        return self.operation(x, w) if bias is None else self.operation(x, w, bias)


def _codes(bias: FakeQuantize, values: Array, scale: Array) -> Array:
    """The int32 codes of a bias, in float64."""
    return double((single(values) / scale).round()).clip(bias.quant_min, bias.quant_max)


def _largest_step(quantizer: FakeQuantize) -> float:
    """The largest magnitude of a step; the zero point lies within the grid, and of symmetric grids in its middle."""
    whole = quantizer.quant_max - quantizer.quant_min
    return float(
        max(-quantizer.quant_min, quantizer.quant_max) if quantizer.symmetric and quantizer.quant_min < 0 else whole
    )
