"""Sums, products and curves of codes, element by element."""

from __future__ import annotations

import abc
from typing import Any, cast

import torch
from torch import Tensor

from onnxqat.arithmetic import Grid
from onnxqat.arithmetic._arrays import Array, counted, looked_up
from onnxqat.bridge.integer import tiles
from onnxqat.bridge.integer.unit import Formula

CODES = 256
"""Largest number of codes of a grid for which results are looked up in a table; those of two operands fill 256 kB."""

LEAST = CODES**2
"""Elements from which on a table of two operands has fewer entries than there are results."""


class Pair(Formula):
    """Two tensors."""

    def values(self, grids: tuple[Grid, ...], output: Grid | None, *args: Any) -> Array:
        """See the base class."""
        a, b = args
        assert output is not None
        steps = ((a / grids[0].scale).round(), (b / grids[1].scale).round())
        return self.kernel(*steps, grids[0], grids[1], output) * output.scale

    def in_torch(self, grids: tuple[Grid, ...], output: Grid | None, *args: Any) -> Tensor:
        """See the base class."""
        a, b = args
        if tiles.helps(args, LEAST) and all(g.high - g.low < CODES for g in grids):
            return _of_pairs(self, grids, cast(Grid, output), a, b)
        return tiles.elementwise(lambda x, y: self.values(grids, output, x, y), a, b)

    @abc.abstractmethod
    def kernel(self, a: Array, b: Array, of_a: Grid, of_b: Grid, output: Grid) -> Array:
        """Steps of the result."""


def _of_pairs(unit: Pair, grids: tuple[Grid, ...], output: Grid, a: Tensor, b: Tensor) -> Tensor:
    """Look up the results of `unit` in a table: two-operand kernels compute in float64, slower than memory access."""
    of_a, of_b = grids
    columns, steps = of_b.high - of_b.low + 1, [counted(g.low, g.high, a) - g.zero_point for g in grids]
    results = unit.kernel(steps[0].unsqueeze(1), steps[1], of_a, of_b, output) * output.scale
    table = torch.cat([results.reshape(-1), results.new_full((1,), torch.nan)])

    def found(x: Tensor, y: Tensor) -> Tensor:
        rows = (x / of_a.scale).round_().add_(of_a.zero_point - of_a.low).clamp_(0, of_a.high - of_a.low)
        places = (y / of_b.scale).round_().add_(of_b.zero_point - of_b.low).clamp_(0, columns - 1)
        places = places.add_(rows.mul_(columns)).nan_to_num_(nan=float(len(table) - 1))  # NaN stays NaN
        return table.index_select(0, places.to(torch.int32).view(-1)).view(x.shape)

    return tiles.elementwise(found, a, b, least=LEAST)


class Sum(Pair):
    """Two tensors added."""

    def kernel(self, a: Array, b: Array, of_a: Grid, of_b: Grid, output: Grid) -> Array:
        """See the base class."""
        return self.arithmetic.add(a, b, of_a, of_b, output)


class Product(Pair):
    """Two tensors multiplied."""

    def kernel(self, a: Array, b: Array, of_a: Grid, of_b: Grid, output: Grid) -> Array:
        """See the base class."""
        return self.arithmetic.multiply(a, b, of_a, of_b, output)


class Curve(Formula, abc.ABC):
    """A function with the arithmetic's own bits; of a tensor on a grid, a table of its codes."""

    @abc.abstractmethod
    def curve(self, x: Array) -> Array:
        """The function of float32."""

    def values(self, grids: tuple[Grid, ...], output: Grid | None, *args: Any) -> Array:
        """See the base class."""
        x = args[0]
        if not grids:
            return self._quantized(x, output)
        return looked_up(self._table(grids[0], output, x), _places(x, grids[0]))

    def in_torch(self, grids: tuple[Grid, ...], output: Grid | None, *args: Any) -> Tensor:
        """See the base class."""
        x = args[0]
        if not grids:
            return tiles.elementwise(lambda held: self._quantized(held, output), x)
        table = self._table(grids[0], output, x)
        return tiles.elementwise(lambda held: looked_up(table, _places(held, grids[0])), x)

    def _table(self, grid: Grid, output: Grid | None, like: Array) -> Array:
        steps = counted(grid.low, grid.high, like) - grid.zero_point
        return self._quantized(steps * grid.scale, output)

    def _quantized(self, x: Array, output: Grid | None) -> Array:
        values = self.curve(x)
        return values if output is None else output.limited((values / output.scale).round()) * output.scale


def _places(x: Array, grid: Grid) -> Array:
    return (x / grid.scale).round() + (grid.zero_point - grid.low)


class Sigmoid(Curve):
    """Sigmoid."""

    def curve(self, x: Array) -> Array:
        """See the base class."""
        return self.arithmetic.sigmoid(x)


class Tanh(Curve):
    """Tanh."""

    def curve(self, x: Array) -> Array:
        """See the base class."""
        return self.arithmetic.tanh(x)
