"""LeakyRelu by two multipliers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from onnxqat.integer_functions.definition import Call
from onnxqat.integer_functions.functions._sloped import Sloped


class Function(Sloped):
    """``x`` where it is not negative, ``alpha * x`` elsewhere."""

    operator = "LeakyRelu"
    attributes = ("alpha",)

    def slopes(self, call: Call) -> npt.NDArray[np.float64]:
        """See the base class."""
        return np.asarray(call.number("alpha", 0.01), np.float64)
