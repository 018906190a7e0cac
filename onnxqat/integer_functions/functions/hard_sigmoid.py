"""HardSigmoid by a table."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from onnxqat.integer_functions.definition import Call, CodeGrid
from onnxqat.integer_functions.functions._curve import Curve


class Function(Curve):
    """``clip(alpha * x + beta, 0, 1)``."""

    operator = "HardSigmoid"
    attributes = ("alpha", "beta")
    curvature = 0.0

    def interpolation_error(self, width: float, x: CodeGrid, call: Call) -> float:
        """See the base class; a bend costs at most a quarter of the slope times the width."""
        return abs(call.number("alpha", 0.2)) * width / 4

    def reference(self, values: npt.NDArray[np.float64], call: Call) -> npt.NDArray[np.float64]:
        """See the base class."""
        return np.clip(call.number("alpha", 0.2) * values + call.number("beta", 0.5), 0, 1)
