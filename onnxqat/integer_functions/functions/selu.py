"""Selu by a table."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from onnxqat.integer_functions.definition import Call, CodeGrid
from onnxqat.integer_functions.functions._curve import Curve

ALPHA, GAMMA = 1.67326319217681884765625, 1.05070102214813232421875
"""Attributes by default (ONNX, Selu 6)."""


class Function(Curve):
    """``gamma * x`` where it is positive, ``gamma * alpha * (exp(x) - 1)`` elsewhere."""

    operator = "Selu"
    attributes = ("alpha", "gamma")
    curvature = 1.0

    def interpolation_error(self, width: float, x: CodeGrid, call: Call) -> float:
        """See the base class; what lies below zero is bent by `alpha`, and the curve at zero by its distance from 1."""
        alpha, gamma = call.number("alpha", ALPHA), call.number("gamma", GAMMA)
        bent = abs(alpha) * super().interpolation_error(width, x, call) + abs(1.0 - alpha) * width / 4
        return abs(gamma) * bent

    def reference(self, values: npt.NDArray[np.float64], call: Call) -> npt.NDArray[np.float64]:
        """See the base class."""
        below = call.number("alpha", ALPHA) * np.expm1(np.minimum(values, 0))
        return call.number("gamma", GAMMA) * np.where(values > 0, values, below)
