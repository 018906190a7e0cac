"""LogSoftmax: distances from the largest code, and the logarithm of the sum of their exponentials."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from onnxqat.integer_functions.definition import Bounds, Call, CodeGrid, Constants, IntegerFunction, as_constants
from onnxqat.integer_functions.exponential import FINE, LN2, NARROW, Exponential
from onnxqat.integer_functions.operations import Integers, Operations

LONGEST_ROW = 1 << 16
"""Elements of a row, as of Softmax."""

MANTISSA, SEGMENTS = 16, 8
"""Bits of the fraction of a sum between two powers of two, and of the number of lines over it."""

FRACTION = 20
"""Bits of the fraction of a logarithm."""

OF_DISTANCE, OF_LOGARITHM = 40, 34
"""Bits of the two multipliers: the products of both, with 16 and with 24 bits, stay in 60."""


class Function(IntegerFunction):
    """``x - log(sum(exp(x)))`` along rows.

    The sum is that of Softmax, on a grid of its own. Its logarithm is one of an exponent, times ``log(2)``, and of a
    mantissa, by straight lines. Two multipliers with one shift bring distance and logarithm to the steps of the result.
    """

    operator = "LogSoftmax"
    rows = True

    @property
    def exponential(self) -> Exponential:
        """Exponentials in the sum."""
        return FINE if self.is_wide else NARROW

    def bounds(self) -> Bounds:
        """See the base class."""
        return {
            **self.exponential.bounds(),
            "x_multiplier": (0, (1 << OF_DISTANCE) - 1),
            "log_multiplier": (0, (1 << OF_LOGARITHM) - 1),
            "y_shift": (1, 62),
            "y_zero_point": self.range_of_result,
        }

    def constants(self, x: CodeGrid, y: CodeGrid, call: Call) -> Constants:
        """See the base class.

        Raises:
            ValueError: a row is too long, or the step of the result too small.
        """
        call.check_length(LONGEST_ROW)
        factor, unit = x.scale / y.scale, 2.0**-FRACTION / y.scale
        shift = min(OF_DISTANCE - math.frexp(factor)[1], OF_LOGARITHM - math.frexp(unit)[1], 62) - 1
        if shift < 1:
            raise ValueError(f"the step of the result, {y.scale:g}, is too small")
        found = {
            **self.exponential.constants(x.scale),
            "x_multiplier": round(factor * 2.0**shift),
            "log_multiplier": round(unit * 2.0**shift),
            "y_shift": shift,
            "y_zero_point": y.zero_point,
        }
        return as_constants(found)

    def formula(self, do: Operations, q: Integers, c: Mapping[str, Integers]) -> Integers:
        """See the base class."""
        distance = do.limited(do.largest_of_row(q) - q, 0, self.span_of_codes)
        powers = self.exponential.of_distances(do, distance, c)
        total = do.stage("sum", do.row_sum(powers, LONGEST_ROW))
        total = do.limited(total, 1, LONGEST_ROW << self.exponential.unit)  # the largest has a power near 1: never 0
        logarithm = do.stage("logarithm", self._logarithm(do, total))
        below = do.stage("scaled", distance * c["x_multiplier"] + logarithm * c["log_multiplier"])
        return do.limited(c["y_zero_point"] - do.rounded(below, c["y_shift"]), *self.range_of_result)

    def _logarithm(self, do: Operations, total: Integers) -> Integers:
        """Natural logarithm of ``total / 2**unit``, with :data:`FRACTION` bits of fraction."""
        powers = [1 << i for i in range(self.exponential.unit + 17)]
        exponent = do.entries_not_above(powers[1:], total)
        above = do.limited(total - do.looked_up(do.constant_table(powers, total), exponent), 0, powers[-1] - 1)
        fraction = do.limited(do.shifted(do.scaled_up(above, MANTISSA), exponent), 0, (1 << MANTISSA) - 1)
        inner = MANTISSA - SEGMENTS
        segment, rest = do.shifted(fraction, inner), do.remainder(fraction, 1 << inner)
        ends = np.rint(np.log1p(np.arange((1 << SEGMENTS) + 1) / (1 << SEGMENTS)) * 2.0**FRACTION)
        table = do.constant_table([int(end) for end in ends], total)
        start, end = (do.looked_up(table, place) for place in (segment, segment + 1))
        part = do.rounded(start * (1 << inner) + (end - start) * rest, inner)
        steps = [round((i - self.exponential.unit) * LN2 * 2.0**FRACTION) for i in range(len(powers))]
        return part + do.looked_up(do.constant_table(steps, total), exponent)

    def reference(self, values: npt.NDArray[np.float64], call: Call) -> npt.NDArray[np.float64]:
        """See the base class."""
        lowered = values - values.max(axis=call.axes, keepdims=True)
        return np.asarray(lowered - np.log(np.exp(lowered).sum(axis=call.axes, keepdims=True)))

    def error_bound(self, x: CodeGrid, y: CodeGrid, call: Call) -> float:
        """See the base class.

        A logarithm is off by the share that its sum is off by, at least 1 as that is, and by the bend of a line, an
        eighth of the square of its width, the fraction that is cut off a mantissa, and three roundings.
        """
        relative, rounding = self.exponential.relative_error(), 0.5 * 2.0**-self.exponential.unit
        share = relative + call.length * rounding
        logarithm = -math.log(1 - share) + 2.0 ** (-2 * SEGMENTS - 3) + 2.0**-MANTISSA + 1.5 * 2.0**-FRACTION
        unit = 2.0 ** -int(self.constants(x, y, call)["y_shift"])
        furthest = self.span_of_codes + 12.0 * 2.0**FRACTION
        return logarithm + y.scale * (0.5 + unit * (1.0 + 0.5 * furthest))
