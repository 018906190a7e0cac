"""HardSwish by a table."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from onnxqat.integer_functions.definition import Call, CodeGrid
from onnxqat.integer_functions.functions._curve import Curve


class Function(Curve):
    """``x * clip(x / 6 + 1 / 2, 0, 1)``."""

    operator = "HardSwish"
    curvature = 1 / 3

    def interpolation_error(self, width: float, x: CodeGrid, call: Call) -> float:
        """See the base class; a bend by a slope of a half costs at most an eighth of the width."""
        return super().interpolation_error(width, x, call) + width / 8

    def reference(self, values: npt.NDArray[np.float64], call: Call) -> npt.NDArray[np.float64]:
        """See the base class."""
        return values * np.clip(values / 6 + 0.5, 0, 1)
