"""Means of codes over windows and over whole images."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from torch.nn import functional

from onnxqat.arithmetic import Arithmetic, Grid
from onnxqat.arithmetic._arrays import Array, double, ones, zeros_around
from onnxqat.bridge.integer.unit import Formula
from onnxqat.bridge.lowering.pooling import all_pads, padded_average_pool

POOLS = (functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d, padded_average_pool)


class GlobalAverage(Formula):
    """The mean of each image."""

    def values(self, grids: tuple[Grid, ...], output: Grid | None, *args: Any) -> Array:
        """See the base class."""
        x, axes, *keep = args
        assert output is not None
        total = double((x / grids[0].scale).round()).sum(axis=tuple(axes), keepdims=bool(keep and keep[0]))
        count = math.prod([x.shape[axis] for axis in axes])
        return self.arithmetic.global_average(total, count, grids[0], output) * output.scale


class Average(Formula):
    """The means of windows of images; places in the padding count as 0 where the operator counts them."""

    def values(self, grids: tuple[Grid, ...], output: Grid | None, *args: Any) -> Array:
        """See the base class."""
        x, *window = args
        assert output is not None
        size, stride, pads, whole = self._window(x.shape[2:], *window)
        padded = zeros_around((x / grids[0].scale).round(), pads)
        count: Array = math.prod(size)
        if not whole and any(map(any, pads)):
            inside = zeros_around(ones((1, 1, *x.shape[2:]), x), pads)
            count = sum(_places(inside, size, stride))
        return self.arithmetic.average(_places(padded, size, stride), count, grids[0], output) * output.scale

    def _window(
        self, sizes: Sequence[int], size: Sequence[int], stride: Sequence[int], *rest: Any
    ) -> tuple[Sequence[int], Sequence[int], list[tuple[int, int]], bool]:
        """Size, stride, zeros in front of and behind each axis, and whether these count."""
        if self.operation is padded_average_pool:
            dilations, pads, same, ceil, whole = rest
            grown = all_pads(sizes, list(size), list(stride), dilations, pads, same, ceil)
        else:
            grown, _, whole = rest
            grown = [*grown, *grown]
        half = len(size)
        return size, stride, list(zip(grown[:half], grown[half:], strict=True)), whole


def is_known(operation: Any, arguments: Sequence[Any], arithmetic: Arithmetic) -> bool:
    """Check for a kernel of a pool: no dilations; padding that does not count in the mean needs ``padded-average``."""
    if operation is padded_average_pool:
        _, _, dilations, *_ = arguments
        return set(dilations) == {1} and "padded-average" in arithmetic.has
    _, _, padding, _, whole = arguments
    return whole or not any(padding) or "padded-average" in arithmetic.has


def _places(x: Array, size: Sequence[int], stride: Sequence[int]) -> Iterator[Array]:
    """Yield, for each position in the window, the elements of `x` at that position of all windows."""
    ends = [
        (length - window) // step * step + 1 for length, window, step in zip(x.shape[2:], size, stride, strict=True)
    ]
    for place in itertools.product(*(range(window) for window in size)):
        spatial = (slice(start, start + end, step) for start, end, step in zip(place, ends, stride, strict=True))
        yield x[(slice(None), slice(None), *spatial)]
