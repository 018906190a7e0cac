"""Division of two tensors: one quotient of whole numbers with a fraction, and one rounding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxqat.integer_functions.definition import Bounds, Call, CodeGrid, Constants, IntegerFunction, as_constants
from onnxqat.integer_functions.operations import Integers, Operations
from onnxqat.integer_functions.requantization import factor_bounds, factor_constants

WIDE, NARROW = 29, 22
"""Bits of the multiplier: its product with a code of 16 bits has 45, with one of 8 bits it stays in int32."""


class Function(IntegerFunction):
    """``x / y`` element by element, with ONNX's broadcasting.

    The multiplier ``x_scale / (y_scale * result_scale)`` comes in front of the quotient, so that its bits are a fraction.
    A divisor of 0 gives the end of the grid on the side of the dividend's sign, as infinity does, and 0 / 0 gives 0.
    """

    operator = "Div"
    operands = 2

    @property
    def _bits(self) -> int:
        return WIDE if self.is_wide else NARROW

    def bounds(self) -> Bounds:
        """See the base class."""
        zero_points = dict.fromkeys(("x_zero_point", "x_2_zero_point"), self.range_of_codes)
        return {**zero_points, **factor_bounds(self._bits), "y_zero_point": self.range_of_result}

    def constants(self, x: CodeGrid, y: CodeGrid, call: Call) -> Constants:
        """See the base class."""
        (divisor,) = call.others
        found = {
            "x_zero_point": x.zero_point,
            "x_2_zero_point": divisor.zero_point,
            **factor_constants(x.scale / (divisor.scale * y.scale), self._bits),
            "y_zero_point": y.zero_point,
        }
        return as_constants(found)

    def formula(self, do: Operations, q: Integers, c: Mapping[str, Integers]) -> Integers:
        """See the base class."""
        dividend, divisor = q[0] - c["x_zero_point"], q[1] - c["x_2_zero_point"]
        size, by = do.magnitude(dividend), do.magnitude(divisor)
        low, high = self.range_of_result
        raised = do.stage("dividend", size * c["y_multiplier"])
        quotient = do.stage("quotient", do.divided(raised, do.limited(by, 1, self.span_of_codes)))
        steps = do.limited(do.rounded(quotient, c["y_shift"]), 0, high - low)
        steps = do.where(do.is_less(by, 1), do.limited(size, 0, 1) * (high - low), steps)
        signed = do.where(do.is_less(dividend, 0), -steps, steps)
        signed = do.where(do.is_less(divisor, 0), -signed, signed)
        return do.limited(signed + c["y_zero_point"], low, high)

    def reference(self, values: Any, call: Call) -> npt.NDArray[np.float64]:
        """See the base class."""
        dividend, divisor = values
        with np.errstate(all="ignore"):
            return np.asarray(np.nan_to_num(dividend / divisor, nan=0.0, posinf=np.inf, neginf=-np.inf))

    def error_bound(self, x: CodeGrid, y: CodeGrid, call: Call) -> float:
        """See the base class: half a step, a unit of the quotient's fraction, and the multiplier's rounding."""
        found = self.constants(x, y, call)
        (divisor,) = call.others
        number, shift = int(found["y_multiplier"]), int(found["y_shift"])
        exact = x.scale / (divisor.scale * y.scale) * 2.0**shift
        largest = self.span_of_codes if exact > number + 1 else self.range_of_result[1] - self.range_of_result[0]
        return y.scale * (0.5 + 2.0**-shift + largest * abs(exact - number) / max(number, 1))
