"""Gelu by a table."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from onnxqat.integer_functions.definition import Call
from onnxqat.integer_functions.functions._curve import Curve


class Function(Curve):
    """``x * (1 + erf(x / sqrt(2))) / 2``, or its form with tanh."""

    operator = "Gelu"
    attributes = ("approximate",)
    curvature = 0.8

    def reference(self, values: npt.NDArray[np.float64], call: Call) -> npt.NDArray[np.float64]:
        """See the base class."""
        if call.attributes.get("approximate") == "tanh":
            share = np.tanh(math.sqrt(2 / math.pi) * (values + 0.044715 * values**3))
        else:
            share = np.vectorize(math.erf)(values / math.sqrt(2))
        return np.asarray(values / 2 * (1 + share))
