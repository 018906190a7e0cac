"""One operator between quantizers, computed on codes."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from onnxqat.arithmetic import Arithmetic, Grid
from onnxqat.arithmetic._arrays import Array
from onnxqat.bridge.integer import tiles
from onnxqat.bridge.kernels import reference
from onnxqat.bridge.quantizers.fake_quantize import FakeQuantize, instead

RELU = (torch.relu, nn.functional.relu)
LIMITS = (*RELU, torch.clamp)
"""Functions that only move the ends of a grid, so that kernels leave them to the requantization."""

Step = tuple[Callable[..., Tensor], tuple[Any, ...]]
"""A function of one tensor and its other arguments."""


class Unit(nn.Module, abc.ABC):
    """An operator, what is left out behind it (Relu, Clip) and the quantizer of its result.

    While all quantizers are on, the result is what the target's integer kernel gives, and the gradient is that of the
    operator on dequantized values and of the quantizer: straight-through, as without this module. In every other
    state the operator and the quantizer do what they always do.

    Args:
        operation: the function that the float graph calls.
        sources: the quantizers whose grids the tensor arguments lie on.
        activations: functions between the operator and the quantizer.
        quantizer: of the result; None where the kernel gives float.
        arithmetic: of the target.
    """

    def __init__(
        self,
        operation: Callable[..., Tensor],
        sources: Sequence[FakeQuantize],
        activations: Sequence[Step],
        quantizer: FakeQuantize | None,
        arithmetic: Arithmetic,
    ) -> None:
        super().__init__()
        self.arithmetic = arithmetic
        self.operation = operation
        self.activations = tuple(activations)
        # A tuple, because nn.Module registers modules that are set as attributes.
        self._quantizers = (tuple(sources), quantizer)

    @property
    def sources(self) -> tuple[FakeQuantize, ...]:
        """The quantizers whose grids the tensor arguments lie on."""
        return self._quantizers[0]

    @property
    def quantizer(self) -> FakeQuantize | None:
        """The quantizer of the result."""
        return self._quantizers[1]

    @property
    def tensor(self) -> str:
        """Name of the result, or of the first tensor argument where no quantizer reads it."""
        return (self.quantizer or self.sources[0]).tensor

    @property
    def kernel_name(self) -> str:
        """Name of the kernel in reports."""
        return type(self).__name__

    @abc.abstractmethod
    def exact(self, *args: Any) -> tuple[Tensor, Tensor | None]:
        """The dequantized result of the kernel, and what the float operator gives where a gradient is wanted."""

    @abc.abstractmethod
    def in_numpy(self, *args: Any) -> Array:
        """The dequantized result of the kernel for numpy arrays, float32."""

    def forward(self, *args: Any) -> Tensor:
        """The dequantized result; of tensors of another type than float32, which does not hold all codes, in float."""
        operands = self.operands(args)
        if not self.active() or any(a.dtype is not torch.float32 for a in operands):
            return self._activated(self.plain(*args))
        device = operands[0].device.type
        if torch.is_autocast_enabled(device):  # sums of codes are no more exact in half precision
            with torch.autocast(device, enabled=False):
                return self._on_codes(*args)
        return self._on_codes(*args)

    def _on_codes(self, *args: Any) -> Tensor:
        result, floating = self.exact(*args)
        if floating is None:
            return result
        if self.quantizer is None:
            return instead(floating, result)
        relu = bool(self.activations) and self.activations[-1][0] in RELU
        for function, rest in self.activations[:-1] if relu else self.activations:
            floating = function(floating, *rest)
        return self.quantizer.through(floating, result, relu=relu)

    def operands(self, args: tuple[Any, ...]) -> list[Tensor]:
        """The tensors among the arguments."""
        return [a for a in args if isinstance(a, Tensor)]

    def plain(self, *args: Any) -> Tensor:
        """The operator of the float graph."""
        return self.operation(*args)

    def active(self) -> bool:
        """Check whether all quantizers are on and quantize as the file says."""
        return all(is_on(q) for q in (*self.sources, self.quantizer) if q is not None)

    def _activated(self, x: Tensor) -> Tensor:
        for function, rest in self.activations:
            x = function(x, *rest)
        return x if self.quantizer is None else self.quantizer(x)

    def grid(self, index: int, ndim: int) -> Grid:
        """Grid of source `index` for a tensor of `ndim` dimensions; with 0, in the shape of its scale."""
        return self.grid_of(self.sources[index], ndim)

    @torch.no_grad()
    def output(self, ndim: int) -> Grid:
        """Grid of the result, which ends where the functions in front of the quantizer end, rounded to it."""
        grid = self.grid_of(cast(FakeQuantize, self.quantizer), ndim)
        if not self.activations:
            return grid
        low, high = grid.low - grid.zero_point, grid.high - grid.zero_point
        for least, most in map(_limits, self.activations):
            low = low if least is None else _greater(low, _steps(least, grid))
            high = high if most is None else -_greater(-high, -_steps(most, grid))
        return dataclasses.replace(grid, ends=(low, high))

    @staticmethod
    @torch.no_grad()
    def grid_of(q: FakeQuantize, ndim: int) -> Grid:
        """The grid of `q` now, without a gradient."""
        axis = q.axis if ndim else None
        zero_point: Any = q.effective_zero_point()
        if not zero_point.ndim and zero_point.device.type == "cpu" and not torch.compiler.is_compiling():
            zero_point = float(zero_point)  # bounds that are numbers make for faster loops
        else:
            zero_point = reference.along_axis(zero_point.to(torch.float32), axis, ndim)
        scale = reference.along_axis(q.effective_scale(), axis, ndim)
        return Grid(scale, zero_point, q.quant_min, q.quant_max, q.tensor)


def as_numpy(grid: Grid) -> Grid:
    """`grid` for arrays of numpy."""
    scale, zero_point = (v.numpy() if isinstance(v, Tensor) else v for v in (grid.scale, grid.zero_point))
    return dataclasses.replace(grid, scale=scale, zero_point=zero_point)


class Formula(Unit):
    """A unit whose kernel is a formula of arrays, of numpy and torch alike."""

    @abc.abstractmethod
    def values(self, grids: tuple[Grid, ...], output: Grid | None, *args: Any) -> Array:
        """The dequantized result of the kernel, float32.

        Args:
            grids: of the tensor arguments that lie on one, in the kind of `args`.
            output: of the result; None where the kernel gives float.
            args: of the operator.
        """

    def in_torch(self, grids: tuple[Grid, ...], output: Grid | None, *args: Any) -> Tensor:
        """:meth:`values` without a gradient, by what is fastest in torch; the same bits."""
        return cast(Tensor, self.values(grids, output, *args))

    def in_numpy(self, *args: Any) -> Array:
        """See the base class."""
        grids = tuple(as_numpy(self.grid(index, 0)) for index in range(len(self.sources)))
        return self.values(grids, None if self.quantizer is None else as_numpy(self.output(0)), *args)

    def exact(self, *args: Any) -> tuple[Tensor, Tensor | None]:
        """See the base class."""
        with torch.no_grad():
            grids = tuple(self.grid(index, 0) for index in range(len(self.sources)))
            output = None if self.quantizer is None else self.output(0)
            result = self.in_torch(grids, output, *(a.detach() if isinstance(a, Tensor) else a for a in args))
        return result, self.operation(*args) if torch.is_grad_enabled() else None


def _limits(step: Step) -> tuple[Any, Any]:
    """Smallest and largest value that a Relu or Clip gives; None where it has no such end."""
    function, rest = step
    if function in RELU:
        return 0.0, None
    return (*rest, None, None)[:2]


def _steps(value: Any, grid: Grid) -> Any:
    """`value` rounded to steps: a number where the zero point is one."""
    if not isinstance(grid.zero_point, float):
        return (value / grid.scale).round()
    return float(np.rint(np.float32(value) / np.float32(grid.scale))) if value else 0.0


def _greater(a: Any, b: Any) -> Any:
    return torch.maximum(a, b) if isinstance(a, Tensor) else max(a, b)


def is_on(q: FakeQuantize) -> bool:
    """Check whether `q` quantizes as the file says."""
    return q.state == "quantize" and q.calibrated and q.finer == 1 and type(q).quantize is FakeQuantize.quantize


class _Steps(torch.autograd.Function):
    """Steps of values that lie on a grid, with the gradient of a division by its scale."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(scale)
        return _rounded(x, scale)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0] / ctx.saved_tensors[0], None


def steps_of(x: Tensor, grid: Grid) -> Tensor:
    """Steps of dequantized values: ``(q - z) * s / s`` rounds to ``q - z`` below 2**22.

    The gradient for `x` is kept.
    """
    if torch.is_grad_enabled() and x.requires_grad:
        return cast(Tensor, _Steps.apply(x, grid.scale))  # type: ignore[no-untyped-call]
    return _rounded(x, grid.scale)


def _rounded(x: Tensor, scale: Tensor) -> Tensor:
    if scale.ndim:
        return (x / scale).round()
    return tiles.quotients(x, scale)
