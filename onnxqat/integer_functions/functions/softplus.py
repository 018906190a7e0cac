"""Softplus by a table."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from onnxqat.integer_functions.definition import Call
from onnxqat.integer_functions.functions._curve import Curve


class Function(Curve):
    """``log(1 + exp(x))``."""

    operator = "Softplus"
    curvature = 0.25

    def reference(self, values: npt.NDArray[np.float64], call: Call) -> npt.NDArray[np.float64]:
        """See the base class."""
        return np.logaddexp(0.0, values)
