"""GlobalAveragePool: an exact sum, a multiplier, and one quotient by the number of places."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from onnxqat.integer_functions.definition import Bounds, Call, CodeGrid, Constants, IntegerFunction
from onnxqat.integer_functions.operations import Integers, Operations
from onnxqat.integer_functions.requantization import factor_bounds, factor_constants

LONGEST_ROW = 1 << 16
"""Places of an image whose codes of 16 bits are summed in 32 bits, and multiplied in 62."""


class Function(IntegerFunction):
    """The mean of each image.

    The sum counts from the smallest code, so that it is not negative: its product with the ratio of the scales is
    divided by the number of places, rounded down, with all bits of the multiplier left; one shift rounds it.
    """

    operator = "GlobalAveragePool"
    rows = True
    has_axis = False

    @classmethod
    def axes_of(cls, attributes: Mapping[str, object], rank: int) -> tuple[int, ...]:
        """See the base class: all axes behind those of samples and channels."""
        del attributes
        return tuple(range(2 - rank, 0)) or (-1,)

    @property
    def _bits(self) -> int:
        return 29 if self.is_wide else 22

    def bounds(self) -> Bounds:
        """See the base class."""
        return {"x_zero_point": self.range_of_codes, **factor_bounds(self._bits), "y_zero_point": self.range_of_result}

    def constants(self, x: CodeGrid, y: CodeGrid, call: Call) -> Constants:
        """See the base class.

        Raises:
            ValueError: an image has too many places.
        """
        if call.length > LONGEST_ROW:
            raise ValueError(f"an image has {call.length} places, and at most {LONGEST_ROW} are summed in integers")
        found = {"x_zero_point": x.zero_point, **factor_constants(x.scale / y.scale, self._bits)}
        return {name: np.asarray(v, np.int64) for name, v in {**found, "y_zero_point": y.zero_point}.items()}

    def formula(self, do: Operations, q: Integers, c: Mapping[str, Integers]) -> Integers:
        """See the base class."""
        low, _ = self.range_of_codes
        count = do.elements_of_row(q, LONGEST_ROW)
        total = do.stage("sum", do.row_sum(q - low, LONGEST_ROW))
        raised = do.stage("product", total * c["y_multiplier"])
        mean = do.limited(do.divided(raised, count), 0, self.span_of_codes << self._bits)
        steps = do.stage("mean", mean - (c["x_zero_point"] - low) * c["y_multiplier"])
        return do.limited(do.rounded(steps, c["y_shift"]) + c["y_zero_point"], *self.range_of_result)

    def reference(self, values: npt.NDArray[np.float64], call: Call) -> npt.NDArray[np.float64]:
        """See the base class."""
        return np.asarray(values.mean(axis=call.axes, keepdims=True))

    def error_bound(self, x: CodeGrid, y: CodeGrid, call: Call) -> float:
        """See the base class: half a step, the multiplier's rounding, and a unit of the quotient."""
        shift = int(self.constants(x, y, call)["y_shift"])
        return y.scale * (0.5 + 2.0**-shift) + 2.0 ** (1 - self._bits) * self.span_of_codes * x.scale
