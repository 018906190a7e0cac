"""ReduceSum: an exact sum of distances from zero, and one multiplier with a shift."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from onnxqat.integer_functions.definition import Call
from onnxqat.integer_functions.functions._reduction import Reduction
from onnxqat.integer_functions.operations import Integers, Operations
from onnxqat.integer_functions.requantization import requantized


class Function(Reduction):
    """The sum of each row."""

    operator = "ReduceSum"

    def formula(self, do: Operations, q: Integers, c: Mapping[str, Integers]) -> Integers:
        """See the base class."""
        total = do.stage("sum", do.reduced_sum(q - c["x_zero_point"], self.longest_row))
        return requantized(do, total, c["y_multiplier"], c["y_shift"], c["y_zero_point"], self.range_of_result)

    def reference(self, values: npt.NDArray[np.float64], call: Call) -> npt.NDArray[np.float64]:
        """See the base class."""
        return np.asarray(values.sum(axis=call.axes, keepdims=call.keeps_axes))
