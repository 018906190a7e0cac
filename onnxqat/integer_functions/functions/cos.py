"""Cos by a table."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from onnxqat.integer_functions.definition import Call
from onnxqat.integer_functions.functions._curve import Curve


class Function(Curve):
    """``cos(x)``."""

    operator = "Cos"
    curvature = 1.0

    def reference(self, values: npt.NDArray[np.float64], call: Call) -> npt.NDArray[np.float64]:
        """See the base class."""
        return np.cos(values)
