"""Sums, products and pools of codes."""

from __future__ import annotations

import abc
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from onnxqat.arithmetic import Grid
from onnxqat.bridge import rational
from onnxqat.bridge.integer import tiles
from onnxqat.bridge.integer.unit import Unit, steps_of


class Pair(Unit):
    """Two tensors, element by element."""

    def exact(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor | None]:
        """See the base class."""
        grids = (self.grid(0, 0), self.grid(1, 0), self.output(0))
        result = tiles.elementwise(lambda x, y: self._values(x, y, *grids), a.detach(), b.detach())
        return result, self.operation(a, b) if torch.is_grad_enabled() else None

    def _values(self, a: Tensor, b: Tensor, of_a: Grid, of_b: Grid, output: Grid) -> Tensor:
        steps = ((a / of_a.scale).round(), (b / of_b.scale).round())
        return cast(Tensor, self.kernel(*steps, of_a, of_b, output) * output.scale)

    @abc.abstractmethod
    def kernel(self, a: Tensor, b: Tensor, of_a: Grid, of_b: Grid, output: Grid) -> Tensor:
        """Steps of the result."""


class Sum(Pair):
    """Two tensors added."""

    def kernel(self, a: Tensor, b: Tensor, of_a: Grid, of_b: Grid, output: Grid) -> Tensor:
        """See the base class."""
        return cast(Tensor, self.arithmetic.add(a, b, of_a, of_b, output))


class Product(Pair):
    """Two tensors multiplied."""

    def kernel(self, a: Tensor, b: Tensor, of_a: Grid, of_b: Grid, output: Grid) -> Tensor:
        """See the base class."""
        return cast(Tensor, self.arithmetic.multiply(a, b, of_a, of_b, output))


class GlobalAverage(Unit):
    """The mean of each image."""

    def exact(self, x: Tensor, axes: Sequence[int], keep: bool = False) -> tuple[Tensor, Tensor | None]:
        """See the base class."""
        grid, output = self.grid(0, 0), self.output(0)
        total = steps_of(x.detach(), grid).double().sum(list(axes), keep)
        count = math.prod([x.shape[axis] for axis in axes])
        result = self.arithmetic.global_average(total, count, grid, output) * output.scale
        return result, torch.mean(x, list(axes), keep) if torch.is_grad_enabled() else None


class Average(Unit):
    """The means of windows of images, without padding."""

    def exact(self, x: Tensor, size: Sequence[int], stride: Sequence[int], *rest: Any) -> tuple[Tensor, Tensor | None]:
        """See the base class."""
        grid, output = self.grid(0, 0), self.output(0)
        places = _places(steps_of(x.detach(), grid), size, stride)
        result = self.arithmetic.average(places, math.prod(size), grid, output) * output.scale
        return result, self.operation(x, size, stride, *rest) if torch.is_grad_enabled() else None


def _places(x: Tensor, size: Sequence[int], stride: Sequence[int]) -> Iterator[Tensor]:
    """Of each place of the window, what lies there in all windows."""
    ends = [
        (length - window) // step * step + 1 for length, window, step in zip(x.shape[2:], size, stride, strict=True)
    ]
    for place in itertools.product(*(range(window) for window in size)):
        found = x
        for axis, (start, end, step) in enumerate(zip(place, ends, stride, strict=True), 2):
            found = found.narrow(axis, start, end)[(slice(None),) * axis + (slice(None, None, step),)]
        yield found


class Sigmoid(Unit):
    """onnxruntime's own sigmoid; of a tensor on a grid, a table of its codes."""

    def exact(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """See the base class."""
        held = x.detach()
        result = _looked_up(self._values, held, self.grid(0, 0)) if self.sources else self._values(held)
        return result, torch.sigmoid(x) if torch.is_grad_enabled() else None

    def _values(self, x: Tensor) -> Tensor:
        values = rational.sigmoid(x)
        if self.quantizer is None:
            return values
        grid = self.output(0)
        return cast(Tensor, grid.limited((values / grid.scale).round()) * grid.scale)


def _looked_up(function: Callable[[Tensor], Tensor], x: Tensor, grid: Grid) -> Tensor:
    """``function(x)`` of a tensor on a `grid` per tensor, computed once for each code."""
    codes = torch.arange(grid.low, grid.high + 1, device=x.device, dtype=torch.float32)
    table = function((codes - grid.zero_point) * grid.scale)

    def found(values: Tensor) -> Tensor:
        places = (values / grid.scale).round() + (grid.zero_point - grid.low)
        places = places.nan_to_num(nan=0.0)  # NaN has the smallest code, as in onnxruntime
        return table.index_select(0, places.to(torch.int32).reshape(-1)).view(values.shape)

    return tiles.elementwise(found, x)
