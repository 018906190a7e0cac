"""Celu by a table."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from onnxqat.integer_functions.definition import Call, CodeGrid
from onnxqat.integer_functions.functions._curve import Curve


class Function(Curve):
    """``max(0, x) + min(0, alpha * (exp(x / alpha) - 1))``."""

    operator = "Celu"
    attributes = ("alpha",)
    curvature = 1.0

    def interpolation_error(self, width: float, x: CodeGrid, call: Call) -> float:
        """See the base class; the second derivative is exp(x / alpha) / alpha below zero, largest at one of the ends."""
        alpha = call.number("alpha", 1.0)
        lowest = min(0.0, float(x.values(np.array([x.low]))[0]))
        return super().interpolation_error(width, x, call) * math.exp(max(0.0, lowest / alpha)) / abs(alpha)

    def reference(self, values: npt.NDArray[np.float64], call: Call) -> npt.NDArray[np.float64]:
        """See the base class.

        Raises:
            ValueError: `alpha` is 0.
        """
        alpha = call.number("alpha", 1.0)
        if not alpha:
            raise ValueError("its alpha is 0")
        return np.maximum(values, 0) + np.minimum(alpha * np.expm1(np.minimum(values, 0) / alpha), 0)
