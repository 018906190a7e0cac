"""Functions that are one straight line below zero and another above it: two multipliers with one shift."""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from onnxqat.integer_functions.definition import Bounds, Call, CodeGrid, Constants, IntegerFunction, as_constants
from onnxqat.integer_functions.operations import Integers, Operations

BITS = 22
"""Bits of a multiplier: float32 holds each of these numbers times a scale, so that a slope read back gives the same, and
products with codes of 8 bits stay in int32."""

LONGEST = 30
"""Largest shift, with which rounding stays in the type of the product."""


class Sloped(IntegerFunction, abc.ABC):
    """``x`` where it is not negative, ``slope * x`` elsewhere."""

    @abc.abstractmethod
    def slopes(self, call: Call) -> npt.NDArray[np.float64]:
        """Slopes below zero."""

    def bounds(self) -> Bounds:
        """See the base class."""
        most = (1 << BITS) - 1
        return {
            "x_zero_point": self.range_of_codes,
            "y_multiplier": (0, most),
            "slope": (-most, most),
            "y_shift": (1, LONGEST),
            "y_zero_point": self.range_of_result,
        }

    def constants(self, x: CodeGrid, y: CodeGrid, call: Call) -> Constants:
        """See the base class; multipliers that are too large for their bits are the largest that there are."""
        slopes = self.slopes(call)
        factor, most = x.scale / y.scale, (1 << BITS) - 1
        largest = factor * max(1.0, float(np.abs(slopes).max()))
        shift = min(max(BITS - math.frexp(largest)[1], 1), LONGEST)
        found = {
            "x_zero_point": x.zero_point,
            "y_multiplier": min(round(factor * 2.0**shift), most),
            "slope": np.clip(np.rint(slopes * factor * 2.0**shift), -most, most),
            "y_shift": shift,
            "y_zero_point": y.zero_point,
        }
        return as_constants(found)

    def formula(self, do: Operations, q: Integers, c: Mapping[str, Integers]) -> Integers:
        """See the base class."""
        distance = q - c["x_zero_point"]
        product = do.where(do.is_less(distance, 0), distance * c["slope"], distance * c["y_multiplier"])
        rounded = do.rounded(do.stage("product", product), c["y_shift"])
        return do.limited(rounded + c["y_zero_point"], *self.range_of_result)

    def reference(self, values: npt.NDArray[np.float64], call: Call) -> npt.NDArray[np.float64]:
        """See the base class."""
        return np.where(values < 0, values * self.slopes(call), values)

    def error_bound(self, x: CodeGrid, y: CodeGrid, call: Call) -> float:
        """See the base class: half a step, and half a unit of a multiplier times the largest distance from zero."""
        shift = int(self.constants(x, y, call)["y_shift"])
        return y.scale * (0.5 + 2.0**-shift * (1.0 + self.span_of_codes / 2))
