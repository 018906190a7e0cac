"""Exp: exponentials of distances from the largest code, times a factor."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from onnxqat.integer_functions.definition import Bounds, Call, CodeGrid, Constants, IntegerFunction, as_constants
from onnxqat.integer_functions.exponential import FINE, NARROW, Exponential
from onnxqat.integer_functions.operations import Integers, Operations
from onnxqat.integer_functions.requantization import factor_bounds, factor_constants, requantized


class Function(IntegerFunction):
    """``exp(x)``: that of the largest code of the input is part of the factor, so that only smaller ones are computed."""

    operator = "Exp"

    @property
    def exponential(self) -> Exponential:
        """Exponentials of the distances."""
        return FINE if self.is_wide else NARROW

    @property
    def _bits(self) -> int:
        return 31 if self.is_wide else 16

    def bounds(self) -> Bounds:
        """See the base class."""
        return {**self.exponential.bounds(), **factor_bounds(self._bits), "y_zero_point": self.range_of_result}

    def constants(self, x: CodeGrid, y: CodeGrid, call: Call) -> Constants:
        """See the base class.

        Raises:
            ValueError: the largest input is so far above those whose exponentials the result holds that these are zero.
        """
        if _largest(x) * 2.0**-self.exponential.unit > max((y.high - y.zero_point) * y.scale, y.scale):
            raise ValueError("the exponential of its largest code is far beyond the range of the result")
        factor = factor_constants(_largest(x) / y.scale * 2.0**-self.exponential.unit, self._bits)
        found = {**self.exponential.constants(x.scale), **factor, "y_zero_point": y.zero_point}
        return as_constants(found)

    def formula(self, do: Operations, q: Integers, c: Mapping[str, Integers]) -> Integers:
        """See the base class."""
        powers = self.exponential.of_distances(do, self.range_of_codes[1] - q, c)
        return requantized(do, powers, c["y_multiplier"], c["y_shift"], c["y_zero_point"], self.range_of_result)

    def reference(self, values: npt.NDArray[np.float64], call: Call) -> npt.NDArray[np.float64]:
        """See the base class."""
        return np.exp(values)

    def error_bound(self, x: CodeGrid, y: CodeGrid, call: Call) -> float:
        """See the base class: an error by size, and half a step of powers of the largest input."""
        largest = _largest(x)
        reached = min(largest, (y.high - y.zero_point) * y.scale)
        relative = self.exponential.relative_error() + 2.0 ** (1 - self._bits)
        return relative * reached + 0.5 * 2.0**-self.exponential.unit * largest + 0.5 * y.scale


def _largest(x: CodeGrid) -> float:
    """The exponential of the largest code, as far as float64 holds it divided by any scale; more saturates all the same."""
    return math.exp(min((x.high - x.zero_point) * x.scale, 600.0))
