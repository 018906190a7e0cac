"""Fake-quantize on the grids that :mod:`onnxqat.bridge.kernels.reference` does not have, and blocks as channels.

These are float8 and float4, and integers whose quotient is rounded to half precision first.

The gradient is the one of that file, with the grid's own rounding: 1 or 0 for `x`, and for the scale what rounding
adds to the quotient, or the end of the grid outside of it.
"""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from onnxqat.bridge.functional import low_precision
from onnxqat.bridge.kernels.reference import along_axis, sum_to_scale
from onnxqat.bridge.speed import rematerialize


@dataclasses.dataclass(frozen=True)
class Grid:
    """Grid of integers or low-precision floats that a quotient is rounded to.

    Attributes:
        storage: ONNX element type in capitals.
        quant_min: smallest code.
        quant_max: largest code.
        precision: type that the quotient is rounded to before.
    """

    storage: str
    quant_min: int
    quant_max: int
    precision: torch.dtype = torch.float32

    def quotient(self, x: Tensor, scale: Tensor) -> Tensor:
        """``x / scale``, float32, rounded to the grid's precision."""
        return (x.to(torch.float32) / scale).to(self.precision).to(torch.float32)

    def round(self, steps: Tensor) -> Tensor:
        """`steps`, which lie between the ends of the grid, rounded to it."""
        spec = low_precision.FLOAT_FORMATS.get(self.storage)
        if spec is None:
            return torch.round(steps)
        if spec.dtype is not None:
            return steps.to(spec.dtype).to(torch.float32)  # rounds half to even; nothing overflows
        return low_precision.rounded(steps, self.storage).to(torch.float32)


def fake_quantize(x: Tensor, scale: Tensor, zero_point: Tensor, grid: Grid, axis: int | None) -> Tensor:
    """`x` on `grid`, in the dtype of `x`; arguments as in :func:`onnxqat.bridge.kernels.reference.fake_quantize`."""
    s = along_axis(scale, axis, x.ndim)
    zero = along_axis(zero_point, axis, x.ndim).to(torch.float32)
    steps = grid.quotient(x, s)
    if grid.storage in low_precision.FLOAT_FORMATS:
        steps = grid.round(steps.clamp(grid.quant_min, grid.quant_max))
    else:
        steps = (grid.round(steps) + zero).clamp(grid.quant_min, grid.quant_max) - zero
    return (steps * s).to(x.dtype)


class GridFunction(torch.autograd.Function):
    """:func:`fake_quantize` with straight-through and LSQ gradients; saves `x`, `scale` and `zero_point` only."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, scale: Tensor, zero_point: Tensor, grid: Grid, axis: int | None, gradient_scale: float
    ) -> Tensor:
        """`x` on the grid, in the dtype of `x`."""
        ctx.save_for_backward(x, scale, zero_point)
        ctx.grid, ctx.axis, ctx.gradient_scale = grid, axis, gradient_scale
        result = fake_quantize(x, scale, zero_point, grid, axis)
        if rematerialize.is_on() and any(ctx.needs_input_grad):

            def again(x: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
                return fake_quantize(x, scale, zero_point, grid, axis)

            rematerialize.note(result, again, x, scale, zero_point)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients for `x` and `scale`."""
        x, scale, zero_point = ctx.saved_tensors
        zero = along_axis(zero_point, ctx.axis, x.ndim).to(torch.float32)
        steps = ctx.grid.quotient(x, along_axis(scale, ctx.axis, x.ndim))
        clamped = torch.minimum(torch.maximum(steps, ctx.grid.quant_min - zero), ctx.grid.quant_max - zero)
        inside = (steps == clamped).to(torch.float32)
        grad_x = (grads[0] * inside).to(x.dtype) if ctx.needs_input_grad[0] else None
        grad_scale = None
        if ctx.needs_input_grad[1]:
            moved = ctx.grid.round(clamped) - inside * clamped
            grad_scale = sum_to_scale(moved * grads[0], ctx.axis) * ctx.gradient_scale
        return grad_x, grad_scale, None, None, None, None


def apply(
    x: Tensor, scale: Tensor, zero_point: Tensor, grid: Grid, axis: int | None, gradient_scale: float = 1.0
) -> Tensor:
    """Differentiable fake-quantize: :func:`fake_quantize` with the gradients of this module."""
    result = GridFunction.apply(x, scale, zero_point, grid, axis, gradient_scale)  # type: ignore[no-untyped-call]
    return cast(Tensor, result)


def to_rows(x: Tensor, axis: int, block: int) -> Tensor:
    """`x` as a matrix with one block along `axis` in each row; the last block of a line is filled up with zeros.

    Zero lies on every grid, and what is filled up does not come back, so it has no part in a gradient.
    """
    moved = x.movedim(axis, -1)
    missing = -moved.shape[-1] % block
    filled = functional.pad(moved, [0, missing]) if missing else moved
    return filled.reshape(-1, block)


def from_rows(rows: Tensor, like: Tensor, axis: int, block: int) -> Tensor:
    """The inverse of :func:`to_rows` for a tensor of the shape of `like`."""
    moved = like.movedim(axis, -1).shape
    lines = rows.reshape(*moved[:-1], -(-moved[-1] // block) * block)
    return lines[..., : moved[-1]].movedim(-1, axis)


def scale_of_rows(values: Tensor, axis: int) -> Tensor:
    """A blocked scale or zero point as one value a row of :func:`to_rows`."""
    return values.movedim(axis, -1).reshape(-1)
