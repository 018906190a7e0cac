"""Sqrt by a table, of 16-bit codes by exponent and mantissa."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from onnxqat.integer_functions.definition import Call
from onnxqat.integer_functions.functions._mantissa import MantissaCurve


class Function(MantissaCurve):
    """The square root; of negative numbers, which have none, 0."""

    operator = "Sqrt"

    def reference(self, values: npt.NDArray[np.float64], call: Call) -> npt.NDArray[np.float64]:
        """See the base class."""
        return np.sqrt(np.maximum(values, 0))

    def mantissa_part(self, mantissa: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """See the base class."""
        return np.sqrt(mantissa)

    def exponent_part(
        self, exponents: npt.NDArray[np.float64], scale: float
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """See the base class."""
        return np.sqrt(scale * 2.0**exponents), np.zeros_like(exponents)
