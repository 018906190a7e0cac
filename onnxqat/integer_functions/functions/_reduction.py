"""Sums and means along axes: an exact sum of codes, whose axes the call names."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import ClassVar

from onnxqat.integer_functions.definition import Bounds, Call, CodeGrid, Constants, IntegerFunction, as_constants
from onnxqat.integer_functions.requantization import factor_bounds, factor_constants


class Reduction(IntegerFunction, abc.ABC):
    """A number for each row, by a sum, a multiplier and a shift.

    Attributes:
        longest_row: elements of the longest row whose sum has its bits.
    """

    rows = True
    has_axis = False
    reduces = True
    attributes: ClassVar[tuple[str, ...]] = ("keepdims",)
    longest_row: int = 1 << 16

    @classmethod
    def axes_of(cls, attributes: Mapping[str, object], rank: int | None) -> tuple[int, ...]:
        """See the base class: the axes of the float operator, counted from the last."""
        if rank is None:
            return ()
        named = attributes.get("axes")
        axes = list(named) if isinstance(named, list | tuple) and named else list(range(rank))
        return tuple(sorted(int(axis) - rank if axis >= 0 else int(axis) for axis in axes))

    @property
    def _bits(self) -> int:
        return 29 if self.is_wide else 22

    def bounds(self) -> Bounds:
        """See the base class."""
        return {"x_zero_point": self.range_of_codes, **factor_bounds(self._bits), "y_zero_point": self.range_of_result}

    def constants(self, x: CodeGrid, y: CodeGrid, call: Call) -> Constants:
        """See the base class.

        Raises:
            ValueError: a row is too long.
        """
        call.check_length(self.longest_row)
        found = {"x_zero_point": x.zero_point, **factor_constants(x.scale / y.scale * self.unit, self._bits)}
        return as_constants({**found, "y_zero_point": y.zero_point})

    @property
    def unit(self) -> float:
        """Steps of the operand that a whole number in front of the multiplier is."""
        return 1.0

    def multiplier_error(self, x: CodeGrid, y: CodeGrid, call: Call) -> float:
        """Largest share of a result by which the rounded multiplier is off."""
        found = self.constants(x, y, call)
        exact = x.scale / y.scale * self.unit * 2.0 ** int(found["y_shift"])
        return abs(exact - int(found["y_multiplier"])) / exact

    def error_bound(self, x: CodeGrid, y: CodeGrid, call: Call) -> float:
        """See the base class: half a step, and the multiplier's rounding of a result as large as the range."""
        steps = self.range_of_result[1] - self.range_of_result[0]
        return y.scale * (0.5 + 1.001 * steps * self.multiplier_error(x, y, call))
