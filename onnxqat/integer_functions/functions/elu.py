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

    def interpolation_error(self, width: float, x: CodeGrid) -> float:
        """See the base class; of an alpha from 0 to 1, which bends the curve at zero by a slope of 1 at most."""
        return super().interpolation_error(width, x) + width / 4

    def reference(self, values: npt.NDArray[np.float64], call: Call) -> npt.NDArray[np.float64]:
        """See the base class."""
        return np.where(values > 0, values, call.number("alpha", 1.0) * np.expm1(np.minimum(values, 0)))
