"""CumSum: exact partial sums of distances from zero, and one multiplier with a shift."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from onnxqat.integer_functions.definition import Call
from onnxqat.integer_functions.functions._reduction import Reduction
from onnxqat.integer_functions.operations import Integers, Operations
from onnxqat.integer_functions.requantization import requantized


class Function(Reduction):
    """The sum of what lies in front of each element of a row, with the element or without, from either end."""

    operator = "CumSum"
    since = 11
    attributes: ClassVar[tuple[str, ...]] = ("exclusive", "reverse")

    @classmethod
    def axes_of(cls, attributes: Mapping[str, Any], rank: int | None) -> tuple[int, ...]:
        """See the base class: sums run along one axis."""
        axes = super().axes_of(attributes, rank)
        return axes if len(axes) == 1 else ()

    def formula(self, do: Operations, q: Integers, c: Mapping[str, Integers]) -> Integers:
        """See the base class."""
        total = do.stage("sum", do.running_sum(q - c["x_zero_point"], self.longest_row))
        return requantized(do, total, c["y_multiplier"], c["y_shift"], c["y_zero_point"], self.range_of_result)

    def reference(self, values: npt.NDArray[np.float64], call: Call) -> npt.NDArray[np.float64]:
        """See the base class."""
        (axis,) = call.axes
        given = np.flip(values, axis) if call.attributes.get("reverse") else values
        total = given.cumsum(axis) - (given if call.attributes.get("exclusive") else 0)
        return np.asarray(np.flip(total, axis) if call.attributes.get("reverse") else total)
