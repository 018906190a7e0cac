"""The exponential of numbers that are not positive: a shift and a polynomial of second order.

``exp(-d * s) = 2**-z * 2**-r`` with whole `z` and `r` from 0 to 1. The usual form for ``2**-r`` is
``a * ((p + b)**2 + c)``, ``p = -r * ln 2`` (Kim et al., "I-BERT: Integer-only BERT Quantization", ICML 2021, section
3.5); here `a`, `b` and `c` are those with the smallest largest error, in units of ``ln 2``. Two traps: `z` has to be
rounded down, whatever the sign, so distances are counted, which are never negative; and a polynomial leaves the range
of what it approximates by its error, so the result is limited, but behind the shift, where nothing else is bent.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from onnxqat.integer_functions.operations import Integers, Operations
from onnxqat.integer_functions.requantization import multiplier

LN2 = math.log(2)


@dataclasses.dataclass(frozen=True)
class Exponential:
    """Exponentials on a fixed grid.

    Attributes:
        argument: bits of the fraction of an argument in units of ``ln 2``.
        unit: bits of the fraction of a result; 1 is ``2**unit``.
        segments: bits of the segments into which ``r`` is divided, each with a factor from a table; 0: one polynomial.
        a, b, c: of ``a * (b - r)**2 + c`` in a segment.
        squared: bits of the fraction of the square.
        factor: bits of the fraction of `a`.
        wide: bits of the factor between codes and arguments.
        error: largest error of ``2**-r``, that of the polynomial and of roundings.
    """

    argument: int
    unit: int
    segments: int
    a: float
    b: float
    c: float
    squared: int
    factor: int
    wide: int
    error: float

    @property
    def longest(self) -> int:
        """Largest shift: what lies further away is 0."""
        return self.unit + 1

    def bounds(self) -> dict[str, tuple[int, int]]:
        """Ends of the constants."""
        return {"exp_multiplier": (0, (1 << self.wide) - 1), "exp_shift": (1, 62)}

    def constants(self, scale: float) -> dict[str, int]:
        """Factor from distances in steps of `scale` to arguments.

        Raises:
            ValueError: a step is so large that the factor has no room, though its exponential is not yet 0.
        """
        factor, most = scale / LN2 * 2.0**self.argument, ((1 << self.wide) - 1) / 2  # its shift is 1 or more
        if factor > most and most < self.longest << self.argument:
            raise ValueError("a step of its input is too large for its exponentials")
        number, shift = multiplier(factor, self.wide)
        return {"exp_multiplier": number, "exp_shift": shift}

    def of_distances(self, do: Operations, distance: Integers, c: Mapping[str, Integers]) -> Integers:
        """``2**unit * exp(-distance * scale)``."""
        u = do.stage("argument", do.shifted(distance * c["exp_multiplier"], c["exp_shift"]))
        return self.of_argument(do, u)

    def of_argument(self, do: Operations, u: Integers) -> Integers:
        """``2**unit * 2**-(u / 2**argument)`` for `u` that are not negative."""
        z = do.limited(do.shifted(u, self.argument), 0, self.longest)
        r = do.remainder(u, 1 << self.argument)
        inner = self.argument - self.segments
        t = do.remainder(r, 1 << inner) if self.segments else r
        line = do.stage("b - r", round(self.b * 2.0**self.argument) - t)
        square = do.rounded(line * line, 2 * self.argument - self.squared)
        bent = do.rounded(square * round(self.a * 2.0**self.factor), self.squared + self.factor - self.unit)
        power = do.stage("polynomial", bent + round(self.c * 2.0**self.unit))
        if self.segments:
            steps = [round(2.0 ** (self.unit - j / (1 << self.segments))) for j in range(1 << self.segments)]
            power = do.rounded(power * do.looked_up(do.constant_table(steps, u), do.shifted(r, inner)), self.unit)
        shifted = do.shifted(do.shifted(power * 2, z) + 1, 1)
        return do.stage("exponential", do.limited(shifted, 0, 1 << self.unit))

    def relative_error(self) -> float:
        """Largest error of a result by its size, roundings to the grid aside: ``2**-z`` is less than two results."""
        return 2 * self.error + 4 * LN2 * 2.0**-self.argument


NARROW = Exponential(14, 14, 0, 0.17200055344, 1.94628587998, 0.34721893435, 14, 17, 22, 1.34e-3)
"""For codes of 8 bits: every stage in int32."""

FINE = Exponential(26, 30, 4, 0.23509043778, 1.47395914271, 0.48925254922, 30, 28, 30, 4.4e-7)
"""For codes of 16 bits: sixteen segments, in int64."""
