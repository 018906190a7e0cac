"""Sums, products and pools of codes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from onnxqat.bridge import rational
from onnxqat.bridge.integer.unit import Unit, steps_of


class Sum(Unit):
    """Two tensors added."""

    def steps(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor | None]:
        """See the base class."""
        of_a, of_b = self.grid(0, 0), self.grid(1, 0)
        result = self.arithmetic.add(steps_of(a.detach(), of_a), steps_of(b.detach(), of_b), of_a, of_b, self.output(0))
        return result, a + b if torch.is_grad_enabled() else None


class Product(Unit):
    """Two tensors multiplied."""

    def steps(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor | None]:
        """See the base class."""
        of_a, of_b = self.grid(0, 0), self.grid(1, 0)
        result = self.arithmetic.multiply(
            steps_of(a.detach(), of_a), steps_of(b.detach(), of_b), of_a, of_b, self.output(0)
        )
        return result, a * b if torch.is_grad_enabled() else None


class GlobalAverage(Unit):
    """The mean of each image."""

    def steps(self, x: Tensor, axes: Sequence[int], keep: bool = False) -> tuple[Tensor, Tensor | None]:
        """See the base class."""
        grid = self.grid(0, 0)
        total = steps_of(x.detach(), grid).double().sum(list(axes), keep)
        count = math.prod([x.shape[axis] for axis in axes])
        result = self.arithmetic.global_average(total, count, grid, self.output(0))
        return result, torch.mean(x, list(axes), keep) if torch.is_grad_enabled() else None


class Average(Unit):
    """The means of windows of images, without padding."""

    def steps(self, x: Tensor, size: Sequence[int], stride: Sequence[int], *rest: Any) -> tuple[Tensor, Tensor | None]:
        """See the base class."""
        grid = self.grid(0, 0)
        places = _places(steps_of(x.detach(), grid), size, stride)
        result = self.arithmetic.average(places, math.prod(size), grid, self.output(0))
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
    """onnxruntime's own sigmoid; in front of a quantizer, of 256 values."""

    def steps(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """See the base class."""
        values = rational.sigmoid(x.detach())
        floating = torch.sigmoid(x) if torch.is_grad_enabled() else None
        if self.quantizer is None:
            return values, floating
        grid = self.output(0)
        return grid.limited((values / grid.scale).round()), floating
