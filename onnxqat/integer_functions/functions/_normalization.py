"""Rows divided by their root mean square: integer sums, an integer square root, and one quotient for each element."""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from onnxqat.integer_functions.definition import Bounds, Call, CodeGrid, Constants, IntegerFunction, as_constants
from onnxqat.integer_functions.operations import Integers, Operations
from onnxqat.integer_functions.requantization import LONGEST
from onnxqat.integer_functions.square_root import square_root

LONGEST_ROW = 1 << 14
"""Elements of a row whose squares are summed in 62 bits."""

SPREAD = 23
"""Bits of a distance from the mean: 8 or 16 of the codes, and the rest a fraction."""

ROOT = 14
"""Bits by which a mean square is shifted to the left for its root, which gets half of them as a fraction."""

QUOTIENT = 20
"""Bits of the fraction of an element by the root mean square."""

GAMMA = 22
"""Bits of the largest gamma: float32 holds each of these numbers times a scale, so that a gamma read back is the same."""

BETA = 58
"""Bits of the largest beta."""

LARGEST_EPSILON = 1 << 46


class Normalization(IntegerFunction, abc.ABC):
    """``x / sqrt(mean(x**2) + epsilon) * gamma + beta`` along rows.

    Attributes:
        centered: whether the mean of a row is taken off first.
    """

    rows = True
    attributes: ClassVar[tuple[str, ...]] = ("axis", "epsilon")
    centered: ClassVar[bool]

    @classmethod
    def axes_of(cls, attributes: Mapping[str, object], rank: int | None) -> tuple[int, ...]:
        """See the base class; rows go from the axis to the last."""
        axis = int(str(attributes.get("axis", -1)))
        if axis >= 0 and rank is None:
            return ()
        return tuple(range(axis, 0)) if rank is None or axis < 0 else tuple(range(axis - rank, 0))

    @property
    def _fraction(self) -> int:
        """Bits of the fraction of a distance."""
        return SPREAD - (16 if self.reads_wide else 8)

    def bounds(self) -> Bounds:
        """See the base class."""
        ends = {"epsilon": (0, LARGEST_EPSILON), "gamma": (-(1 << GAMMA), 1 << GAMMA)}
        return {
            "x_zero_point": self.range_of_codes,
            **ends,
            "beta": (-(1 << BETA), (1 << BETA)),
            "y_shift": (1, LONGEST),
            "y_zero_point": self.range_of_result,
        }

    def constants(self, x: CodeGrid, y: CodeGrid, call: Call) -> Constants:
        """See the base class.

        Raises:
            ValueError: a row is too long, or epsilon larger than any mean square.
        """
        call.check_length(LONGEST_ROW)
        gamma, beta = self._weights(call)
        gamma, beta = gamma / y.scale, beta / y.scale
        exponent = math.frexp(float(np.abs(gamma).max()) or 1.0)[1]
        # beta, which has no factor to be divided by, has to fit as well
        room = BETA - 1 - math.frexp(float(np.abs(beta).max()))[1]
        left = min(max(min(GAMMA - exponent, room - QUOTIENT), 1 - QUOTIENT), LONGEST - QUOTIENT)
        epsilon = float(call.attributes.get("epsilon") or 0.0) * (2.0**self._fraction / x.scale) ** 2
        if epsilon > LARGEST_EPSILON:
            raise ValueError("its epsilon is larger than the square of the range of its input")
        scaled = np.clip(np.rint(beta * 2.0 ** (left + QUOTIENT)), -(1 << BETA), (1 << BETA))
        found = {
            "x_zero_point": x.zero_point,
            "epsilon": round(epsilon),
            "gamma": np.clip(np.rint(gamma * 2.0**left), -(1 << GAMMA), 1 << GAMMA),
            "beta": scaled,
            "y_shift": left + QUOTIENT,
            "y_zero_point": y.zero_point,
        }
        return as_constants(found)

    def parameters(
        self, constants: Constants, grids: Sequence[CodeGrid], y: CodeGrid
    ) -> dict[str, npt.NDArray[np.float64]]:
        """See the base class."""
        shift = int(constants["y_shift"])
        gamma = constants["gamma"].astype(np.float64) * y.scale * 2.0 ** (QUOTIENT - shift)
        beta = constants["beta"].astype(np.float64) * y.scale * 2.0**-shift
        return {name: value for name, value in (("gamma", gamma), ("beta", beta)) if name in self.weights}

    def _weights(self, call: Call) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        one = np.ones((), np.float64)
        return np.asarray(call.parameters.get("gamma", one)), np.asarray(call.parameters.get("beta", one * 0))

    def formula(self, do: Operations, q: Integers, c: Mapping[str, Integers]) -> Integers:
        """See the base class."""
        rows = self._rows(do, q)
        count = do.elements_of_row(rows, LONGEST_ROW)
        distance = self._distance(do, rows, c, count)
        square = do.row_sum(distance * distance, LONGEST_ROW)
        mean = do.limited(do.divided(do.stage("sum of squares", square), count), 0, 1 << 2 * SPREAD)
        power = do.limited(mean + c["epsilon"], 1, 1 << 2 * SPREAD + 1)  # a row of zeros has no mean square
        root = do.stage("root", square_root(do, do.scaled_up(power, ROOT)))
        raised = do.scaled_up(do.magnitude(distance), ROOT // 2 + QUOTIENT)
        size = do.limited(do.divided(raised + do.shifted(root, 1), root), 0, 1 << QUOTIENT + 7)
        signed = do.where(do.is_less(distance, 0), -size, size)
        total = do.stage("scaled", self._of_rows(do, signed, q) * c["gamma"] + c["beta"])
        return do.limited(do.rounded(total, c["y_shift"]) + c["y_zero_point"], *self.range_of_result)

    def _rows(self, do: Operations, q: Integers) -> Integers:
        """`q` in the shape in which rows lie along the axes."""
        del do
        return q

    def _of_rows(self, do: Operations, x: Integers, q: Integers) -> Integers:
        """`x` in the shape of `q` again."""
        del do, q
        return x

    def _distance(self, do: Operations, q: Integers, c: Mapping[str, Integers], count: Integers) -> Integers:
        """Elements with a fraction, from the mean or from zero."""
        if not self.centered:
            return do.stage("distance", (q - c["x_zero_point"]) * (1 << self._fraction))
        raised = do.scaled_up(q - self.range_of_codes[0], self._fraction)
        total = do.stage("sum", do.row_sum(raised, LONGEST_ROW))
        mean = do.limited(do.divided(total + do.shifted(count, 1), count), 0, self.span_of_codes << self._fraction)
        return do.stage("distance", raised - mean)

    def reference(self, values: npt.NDArray[np.float64], call: Call) -> npt.NDArray[np.float64]:
        """See the base class."""
        if self.centered:
            values = values - values.mean(axis=call.axes, keepdims=True)
        power = (values**2).mean(axis=call.axes, keepdims=True) + float(call.attributes.get("epsilon") or 0.0)
        gamma, beta = self._weights(call)
        with np.errstate(all="ignore"):
            return np.asarray(np.nan_to_num(values / np.sqrt(power)) * gamma + beta)

    def error_bound(self, x: CodeGrid, y: CodeGrid, call: Call) -> float:
        """See the base class.

        In a row that is not constant the smallest root mean square is that of one code beside the others, and the
        largest quotient is the root of the length. A mean is off by half a unit at most, a mean square by less than
        two, a root by one unit of its fraction.
        """
        gamma, _ = self._weights(call)
        least = 2.0**self._fraction * math.sqrt(max(call.length - 1, 1)) / call.length
        largest = math.sqrt(call.length)
        quotient = 0.5 / least + largest * (1.0 / least**2 + 2.0 ** -(ROOT // 2) / least) + 2.0**-QUOTIENT
        return float(np.abs(gamma).max()) * (quotient + largest * 2.0 ** (1 - GAMMA)) + y.scale * 0.501
