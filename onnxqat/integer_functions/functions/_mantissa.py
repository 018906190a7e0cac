"""Functions that bend most next to zero: of 16-bit codes by exponent and mantissa, as hardware computes them.

A step ``d`` is ``m * 2**e`` with a mantissa from 1 to 2. Of roots, reciprocals and logarithms, what the exponent does is a
factor or an addend, one of sixteen, and the mantissa's part is smooth: straight lines over equal segments come near to it
everywhere, however near to a pole the number is.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from onnxqat.integer_functions.definition import Bounds, Call, CodeGrid, Constants, as_constants
from onnxqat.integer_functions.functions._curve import Curve
from onnxqat.integer_functions.operations import Integers, Operations

EXPONENTS = 16
"""Powers of two that a step of a 16-bit grid can have in it."""

MANTISSA = 16
"""Bits of the fraction of a mantissa."""

PART = 24
"""Bits of the fraction of what the mantissa makes."""

FACTOR = 19
"""Bits of the fraction of a factor."""

LARGEST = 17
"""Bits of the largest factor and addend, in steps of the result: twice what a code of 16 bits holds."""


class MantissaCurve(Curve, abc.ABC):
    """A function of a number and its power of two; codes of 8 bits have a table as every curve has.

    Attributes:
        keeps_sign: whether the function of a negative number is minus that of its size.
    """

    curvature = float("inf")
    keeps_sign: ClassVar[bool] = False

    @abc.abstractmethod
    def mantissa_part(self, mantissa: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """The function of mantissas from 1 to 2, at least 0 and less than 2."""

    @abc.abstractmethod
    def exponent_part(
        self, exponents: npt.NDArray[np.float64], scale: float
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Factor and addend of ``scale * 2**exponents``, so that the function is ``part * factor + addend``."""

    def bounds(self) -> Bounds:
        """See the base class."""
        if not self.reads_wide:
            return super().bounds()
        return {
            "x_zero_point": self.range_of_codes,
            "factor": (0, 1 << LARGEST + FACTOR),
            "addend": (-(1 << LARGEST + FACTOR + PART), 1 << LARGEST + FACTOR + PART),
            "of_zero": (-(1 << LARGEST), 1 << LARGEST),
            "y_zero_point": self.range_of_result,
        }

    def constants(self, x: CodeGrid, y: CodeGrid, call: Call) -> Constants:
        """See the base class.

        Raises:
            ValueError: the step of the result is too small.
        """
        if not self.reads_wide:
            return super().constants(x, y, call)
        factor, addend = (part / y.scale for part in self.exponent_part(np.arange(EXPONENTS, dtype=float), x.scale))
        if addend.any() and factor.max() >= 1 << LARGEST:
            raise ValueError(f"the step of the result, {y.scale:g}, is too small")
        with np.errstate(all="ignore"):
            at_zero = float(self.reference(np.zeros(1), call)[0]) / y.scale
        end = float(1 << LARGEST)
        found = {
            "x_zero_point": x.zero_point,
            "factor": np.rint(np.minimum(factor, end) * 2.0**FACTOR),
            "addend": np.rint(np.clip(addend, -end, end) * 2.0 ** (FACTOR + PART)),
            "of_zero": np.rint(np.clip(at_zero, -end, end)),
            "y_zero_point": y.zero_point,
        }
        return as_constants(found)

    def formula(self, do: Operations, q: Integers, c: Mapping[str, Integers]) -> Integers:
        """See the base class."""
        if not self.reads_wide:
            return super().formula(do, q, c)
        step = q - c["x_zero_point"]
        size = do.limited(do.magnitude(step) if self.keeps_sign else step, 1, self.span_of_codes)
        exponent = do.entries_not_above([1 << i for i in range(1, EXPONENTS)], size)
        whole = 1 << MANTISSA
        raised = do.limited(do.scaled_up(size, MANTISSA - exponent), whole, 2 * whole - 1)
        fraction = do.stage("mantissa", raised - whole)
        inner = MANTISSA - self.lut
        segment, rest = do.shifted(fraction, inner), do.remainder(fraction, 1 << inner)
        table = do.constant_table(self._table(), q)
        start, end = (do.looked_up(table, place) for place in (segment, segment + 1))
        part = do.rounded(do.stage("line", start * (1 << inner) + (end - start) * rest), inner)
        total = do.stage("scaled", part * do.looked_up(c["factor"], exponent) + do.looked_up(c["addend"], exponent))
        result = do.rounded(total, FACTOR + PART)
        if self.keeps_sign:
            result = do.where(do.is_less(step, 0), -result, result)
        nothing = do.is_less(do.magnitude(step) if self.keeps_sign else step, 1)
        result = do.where(nothing, c["of_zero"], result)
        return do.limited(result + c["y_zero_point"], *self.range_of_result)

    def _table(self) -> list[int]:
        """Ends of the segments of mantissas, with :data:`PART` bits of fraction."""
        mantissas = 1 + np.arange((1 << self.lut) + 1) / (1 << self.lut)
        return [int(end) for end in np.rint(self.mantissa_part(mantissas) * 2.0**PART)]

    def error_bound(self, x: CodeGrid, y: CodeGrid, call: Call) -> float:
        """See the base class.

        A line leaves the mantissa's part by its bend, measured between the ends of the first segment, where it is
        largest, and roundings by a unit. A factor multiplies both: the largest one with a result inside of the range.
        """
        if not self.reads_wide:
            return super().error_bound(x, y, call)
        ends = self.mantissa_part(1 + np.arange(3.0) / (2 << self.lut))
        bent = 1.1 * abs(float(ends[1] - (ends[0] + ends[2]) / 2)) + 2.0**-PART * 1.5
        factor, addend = self.exponent_part(np.arange(EXPONENTS, dtype=float), x.scale)
        if not addend.any():
            least = float(self.mantissa_part(np.array([1.0, 2.0])).min())
            factor = np.minimum(factor, y.scale * 2.0**LARGEST / least)
        rounded = 2.0 ** (1 - FACTOR) + 2.0**-PART
        return float(factor.max()) * bent + y.scale * (0.5 + rounded + 2.0 ** -(FACTOR - 1))
