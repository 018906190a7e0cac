"""Kernels that only shift: chips whose scales are powers of two, with a shift to the right of 0 to 31 bits behind a sum.

Such as Knight's, whose ``q`` of a layer is ``log2(y_scale / (x_scale * w_scale))``.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable

from onnxqat.arithmetic import _base
from onnxqat.arithmetic._arrays import Array, double, frexp, largest, single, where, whole
from onnxqat.arithmetic._base import Accumulator
from onnxqat.arithmetic._grid import Grid
from onnxqat.arithmetic._rounding import Rounding, shift_right
from onnxqat.errors import UsageError

LONGEST = 31
"""Bits of the longest shift."""


class Arithmetic(_base.Arithmetic):
    """Layers, Add, Mul and means.

    Args:
        accumulator: of layers.
        rounding: of every shift.
    """

    name = "shift"
    has = frozenset({"conversion"})

    def __init__(self, accumulator: Accumulator | None = None, rounding: Rounding = "half-up") -> None:
        super().__init__(accumulator)
        self.rounding: Rounding = rounding

    def requantize(self, total: Array, activation: Array, weight: Array, output: Grid) -> Array:
        """See the base class."""
        return self._shifted(whole(total), _exponent(output) - _power(activation * weight, output.tensor), output)

    def add(self, a: Array, b: Array, grid_a: Grid, grid_b: Grid, output: Grid) -> Array:
        """See the base class: the operand with the coarser grid is shifted to the left first, the sum to the right."""
        of_a, of_b = _exponent(grid_a), _exponent(grid_b)
        finer = where(of_a < of_b, of_a, of_b)
        total = (whole(a) << (of_a - finer)) + (whole(b) << (of_b - finer))
        return self._shifted(total, _exponent(output) - finer, output)

    def multiply(self, a: Array, b: Array, grid_a: Grid, grid_b: Grid, output: Grid) -> Array:
        """See the base class."""
        return self._shifted(whole(a * b), _exponent(output) - _exponent(grid_a) - _exponent(grid_b), output)

    def convert(self, x: Array, grid: Grid, output: Grid) -> Array:
        """See the base class: to the left, which is exact, where the other grid is finer."""
        by = _exponent(output) - _exponent(grid)
        left = (-by).clip(0, LONGEST)  # further, every step but 0 is at an end of the grid
        return self._shifted(whole(x) << left, by.clip(0, None), output)

    def global_average(self, total: Array, count: int, grid: Grid, output: Grid) -> Array:
        """See the base class: times ``1 / count`` in 15 bits, then one shift."""
        bits = (count - 1).bit_length() + 15
        factor = round(2**bits / count)
        return self._shifted(whole(total) * factor, _exponent(output) - _exponent(grid) + bits, output, LONGEST + bits)

    def average(self, places: Iterable[Array], count: Array | int, grid: Grid, output: Grid) -> Array:
        """See the base class; of windows that all count alike."""
        assert isinstance(count, int)
        return self.global_average(functools.reduce(operator.add, places), count, grid, output)

    def _shifted(self, x: Array, by: Array, output: Grid, longest: int = LONGEST) -> Array:
        if largest(by) > longest or bool((by < 0).any()):
            raise UsageError(
                "option-invalid",
                f"tensor {output.tensor!r} would need a shift by {by.reshape(-1)[0]} bits; the range is 0 to {longest}",
                hint="insert-qdq with a backend whose chip shifts keeps the scales in range",
            )
        return output.limited(single(shift_right(x, by, self.rounding)))


def _exponent(grid: Grid) -> Array:
    return _power(grid.scale, grid.tensor)


def _power(scale: Array, tensor: str) -> Array:
    """The power of two that `scale` is, int64."""
    mantissa, exponent = frexp(double(scale))
    if bool((mantissa != 0.5).any()):
        raise UsageError(
            "option-invalid",
            f"the scale of tensor {tensor!r} is not a power of two, which arithmetic 'shift' needs",
            hint="insert-qdq --exact, or a backend whose scales are powers of two",
        )
    return exponent - 1
