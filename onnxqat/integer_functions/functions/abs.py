"""Abs: a magnitude and a factor."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from onnxqat.integer_functions.definition import Bounds, Call, CodeGrid, Constants, IntegerFunction, as_constants
from onnxqat.integer_functions.operations import Integers, Operations
from onnxqat.integer_functions.requantization import factor_bounds, factor_constants, requantized


class Function(IntegerFunction):
    """``abs(x)``."""

    operator = "Abs"

    @property
    def _bits(self) -> int:
        return 31 if self.is_wide else 22

    def bounds(self) -> Bounds:
        """See the base class."""
        return {"x_zero_point": self.range_of_codes, **factor_bounds(self._bits), "y_zero_point": self.range_of_result}

    def constants(self, x: CodeGrid, y: CodeGrid, call: Call) -> Constants:
        """See the base class."""
        found = {"x_zero_point": x.zero_point, **factor_constants(x.scale / y.scale, self._bits)}
        return as_constants({**found, "y_zero_point": y.zero_point})

    def formula(self, do: Operations, q: Integers, c: Mapping[str, Integers]) -> Integers:
        """See the base class."""
        size = do.magnitude(q - c["x_zero_point"])
        return requantized(do, size, c["y_multiplier"], c["y_shift"], c["y_zero_point"], self.range_of_result)

    def reference(self, values: npt.NDArray[np.float64], call: Call) -> npt.NDArray[np.float64]:
        """See the base class."""
        return np.abs(values)

    def error_bound(self, x: CodeGrid, y: CodeGrid, call: Call) -> float:
        """See the base class."""
        return y.scale * 0.5 + 2.0 ** (1 - self._bits) * self.span_of_codes * x.scale
