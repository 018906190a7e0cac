"""Means of rows: an exact sum, a multiplier, and one quotient by the number of elements."""

from __future__ import annotations

import abc
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from onnxqat.integer_functions.definition import Call, CodeGrid
from onnxqat.integer_functions.functions._reduction import Reduction
from onnxqat.integer_functions.operations import Integers, Operations


class Mean(Reduction, abc.ABC):
    """The mean of each row.

    The sum counts from the smallest code, so that it is not negative: its product with the ratio of the scales is
    divided by the number of elements, rounded down, with all bits of the multiplier left; one shift rounds it.
    """

    def formula(self, do: Operations, q: Integers, c: Mapping[str, Integers]) -> Integers:
        """See the base class."""
        low, _ = self.range_of_codes
        count = do.elements_of_row(q, self.longest_row)
        total = do.stage("sum", do.reduced_sum(q - low, self.longest_row))
        raised = do.stage("product", total * c["y_multiplier"])
        mean = do.limited(do.divided(raised, count), 0, self.span_of_codes << self._bits)
        steps = do.stage("mean", mean - (c["x_zero_point"] - low) * c["y_multiplier"])
        return do.limited(do.rounded(steps, c["y_shift"]) + c["y_zero_point"], *self.range_of_result)

    def reference(self, values: npt.NDArray[np.float64], call: Call) -> npt.NDArray[np.float64]:
        """See the base class."""
        return np.asarray(values.mean(axis=call.axes, keepdims=call.keeps_axes))

    def error_bound(self, x: CodeGrid, y: CodeGrid, call: Call) -> float:
        """See the base class: half a step, the multiplier's rounding, and a unit of the quotient."""
        shift = int(self.constants(x, y, call)["y_shift"])
        return y.scale * (0.5 + 2.0**-shift) + 2.0 ** (1 - self._bits) * self.span_of_codes * x.scale
