"""Reciprocal by a table, of 16-bit codes by exponent and mantissa."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from onnxqat.integer_functions.definition import Call
from onnxqat.integer_functions.functions._mantissa import MantissaCurve


class Function(MantissaCurve):
    """``1 / x``; of 0, the largest result."""

    operator = "Reciprocal"
    keeps_sign = True

    def reference(self, values: npt.NDArray[np.float64], call: Call) -> npt.NDArray[np.float64]:
        """See the base class."""
        with np.errstate(divide="ignore"):
            return 1 / values

    def mantissa_part(self, mantissa: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """See the base class."""
        return 1 / mantissa

    def exponent_part(
        self, exponents: npt.NDArray[np.float64], scale: float
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """See the base class."""
        return 2.0**-exponents / scale, np.zeros_like(exponents)
