"""ReduceL2: an exact sum of squares, an integer square root, and one multiplier with a shift."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from onnxqat.integer_functions.definition import Call, CodeGrid
from onnxqat.integer_functions.functions._reduction import Reduction
from onnxqat.integer_functions.operations import Integers, Operations
from onnxqat.integer_functions.requantization import requantized
from onnxqat.integer_functions.square_root import square_root

FRACTION = 7
"""Bits of the fraction of a root: squares of 16-bit codes in the longest row leave 14 bits of int64, twice as many."""


class Function(Reduction):
    """The root of the sum of squares of each row."""

    operator = "ReduceL2"
    longest_row = 1 << 14

    @property
    def unit(self) -> float:
        """See the base class: a root is one of steps with a fraction."""
        return 2.0**-FRACTION

    def formula(self, do: Operations, q: Integers, c: Mapping[str, Integers]) -> Integers:
        """See the base class."""
        distance = do.magnitude(q - c["x_zero_point"])
        square = do.stage("sum of squares", do.reduced_sum(distance * distance, self.longest_row))
        raised = do.limited(do.scaled_up(square, 2 * FRACTION), 1, (1 << 62) - 1)  # zeros have a root of one unit
        root = do.limited(square_root(do, raised), 1, 1 << 31)
        root = do.stage("root", do.where(do.is_less(square, 1), 0, root))
        return requantized(do, root, c["y_multiplier"], c["y_shift"], c["y_zero_point"], self.range_of_result)

    def reference(self, values: npt.NDArray[np.float64], call: Call) -> npt.NDArray[np.float64]:
        """See the base class."""
        return np.asarray(np.sqrt((values**2).sum(axis=call.axes, keepdims=call.keeps_axes)))

    def error_bound(self, x: CodeGrid, y: CodeGrid, call: Call) -> float:
        """See the base class: half a step, a unit of the root, and the multiplier's rounding of the largest result."""
        return super().error_bound(x, y, call) + 1.001 * x.scale * self.unit
