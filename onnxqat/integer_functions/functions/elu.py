"""Elu by a table."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from onnxqat.integer_functions.definition import Call, CodeGrid
from onnxqat.integer_functions.functions._curve import Curve


class Function(Curve):
    """``x`` where it is positive, ``alpha * (exp(x) - 1)`` elsewhere."""

    operator = "Elu"
    attributes = ("alpha",)
    curvature = 1.0

    def interpolation_error(self, width: float, x: CodeGrid, call: Call) -> float:
        """See the base class; alpha bends the curve at zero by its distance from 1, and what lies below by its size."""
        alpha = call.number("alpha", 1.0)
        return max(1.0, abs(alpha)) * super().interpolation_error(width, x, call) + abs(1.0 - alpha) * width / 4

    def reference(self, values: npt.NDArray[np.float64], call: Call) -> npt.NDArray[np.float64]:
        """See the base class."""
        return np.where(values > 0, values, call.number("alpha", 1.0) * np.expm1(np.minimum(values, 0)))
