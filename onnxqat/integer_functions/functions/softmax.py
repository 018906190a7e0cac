"""Softmax: exponentials of distances from the largest code, and shares of their sum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxqat.integer_functions.definition import Bounds, Call, CodeGrid, Constants, IntegerFunction, as_constants
from onnxqat.integer_functions.exponential import FINE, NARROW, Exponential
from onnxqat.integer_functions.operations import Integers, Operations
from onnxqat.integer_functions.requantization import multiplier

LONGEST_ROW = 1 << 16
"""Elements of a row whose sum of exponentials fits into int32."""


class Function(IntegerFunction):
    """Shares of a row.

    The sum is on a grid of its own, ``2**-14`` for codes of 8 bits and ``2**-30`` for longer ones, so that it is exact.
    One quotient of whole numbers gives a share with some bits more than the result has, which is then rounded.
    """

    operator = "Softmax"
    rows = True

    @property
    def exponential(self) -> Exponential:
        """Exponentials of the numerators."""
        return FINE if self.is_wide else NARROW

    @property
    def _share(self) -> tuple[int, int]:
        """Bits of the factor in front of the quotient, and most bits that the quotient has more than the result."""
        return (26, 10) if self.is_wide else (16, 8)

    def bounds(self) -> Bounds:
        """See the base class."""
        bits, more = self._share
        ends = {"share_multiplier": (0, (1 << bits) - 1), "share_shift": (1, more)}
        return {**self.exponential.bounds(), **ends, "y_zero_point": self.range_of_result}

    def constants(self, x: CodeGrid, y: CodeGrid, call: Call) -> Constants:
        """See the base class.

        Raises:
            ValueError: a row is too long, or the step of the result too small.
        """
        bits, more = self._share
        call.check_length(LONGEST_ROW)
        if 2 / y.scale >= 1 << bits:
            raise ValueError(f"the step of the result, {y.scale:g}, is too small")
        number, shift = multiplier(1 / y.scale, bits, more)
        found = {**self.exponential.constants(x.scale), "share_multiplier": number, "share_shift": shift}
        return as_constants({**found, "y_zero_point": y.zero_point})

    def formula(self, do: Operations, q: Integers, c: Mapping[str, Integers]) -> Integers:
        """See the base class."""
        distance = do.limited(do.largest_of_row(q) - q, 0, self.span_of_codes)
        return self.shares(do, self.exponential.of_distances(do, distance, c), c)

    def shares(self, do: Operations, powers: Integers, c: Mapping[str, Integers]) -> Integers:
        """Codes of the shares of `powers` in the sums of their rows."""
        total = do.stage("denominator", do.row_sum(powers, LONGEST_ROW))
        total = do.limited(total, 1, LONGEST_ROW << self.exponential.unit)  # the largest has a power near 1: never 0
        share = do.stage("quotient", do.divided(powers * c["share_multiplier"], total))
        return do.limited(do.rounded(share, c["share_shift"]) + c["y_zero_point"], *self.range_of_result)

    def reference(self, values: Any, call: Call) -> npt.NDArray[np.float64]:
        """See the base class."""
        powers = np.exp(values - values.max(axis=call.axes, keepdims=True))
        return np.asarray(powers / powers.sum(axis=call.axes, keepdims=True))

    def error_bound(self, x: CodeGrid, y: CodeGrid, call: Call) -> float:
        """See the base class.

        With an error of each power of ``e`` of its size and of ``h`` from rounding, a share ``p`` is off by at most
        ``2 e p (1 - p) + (n + 1) h`` of a sum that is at least ``1 - e - n h``; ``p (1 - p)`` is at most a quarter.
        """
        relative, rounding = self.exponential.relative_error(), 0.5 * 2.0**-self.exponential.unit
        bits, _ = self._share
        share = (relative / 2 + (call.length + 1) * rounding) / (1 - relative - call.length * rounding)
        shift = int(self.constants(x, y, call)["share_shift"])
        return share + y.scale * (0.5 + 2.0**-shift) + 2.0 ** (1 - bits)
