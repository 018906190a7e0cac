"""Log by a table."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from onnxqat.integer_functions.definition import Call
from onnxqat.integer_functions.functions._curve import Curve


class Function(Curve):
    """The natural logarithm; of what has none, the smallest result."""

    operator = "Log"
    curvature = float("inf")
    has_segments = False

    def reference(self, values: npt.NDArray[np.float64], call: Call) -> npt.NDArray[np.float64]:
        """See the base class."""
        with np.errstate(divide="ignore"):
            return np.log(np.maximum(values, 0))
