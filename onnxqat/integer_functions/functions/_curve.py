"""Functions of single elements by a table: of all 256 codes, or of the ends of segments with straight lines between."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from onnxqat.integer_functions.definition import Bounds, Call, CodeGrid, Constants, IntegerFunction
from onnxqat.integer_functions.operations import Integers, Operations

FRACTION = 8
"""Bits that the ends of segments have more than the result, so that a line adds next to no rounding."""

SEGMENTS = 10
"""Bits of the number of segments where nobody says it."""

LARGEST_END = 1 << 26
"""Largest magnitude of an end of a segment: some times the largest code, so that lines across it keep their slope."""


class Curve(IntegerFunction, abc.ABC):
    """A function of one element.

    Codes of 8 bits have a table of 256 results. Longer codes have ``2**k`` segments: their first bits choose one, and
    the others a place on the line between its ends.

    Args:
        x: ONNX type of the codes that it reads.
        y: ONNX type of the codes that it gives.
        lut: bits of the table: 8 for one entry a code; None: 8, or ``SEGMENTS`` for longer codes.

    Attributes:
        curvature: largest magnitude of the second derivative.
    """

    curvature: ClassVar[float]
    has_tables = True

    def __init__(self, x: str, y: str, lut: int | None = None) -> None:
        super().__init__(x, y)
        least = SEGMENTS if self.reads_wide else 8
        self.lut = least if lut is None else lut

    @property
    def name(self) -> str:
        """See the base class."""
        return f"{super().name}_lut{self.lut}"

    @abc.abstractmethod
    def reference(self, values: npt.NDArray[np.float64], call: Call) -> npt.NDArray[np.float64]:
        """See the base class."""

    @property
    def _segment(self) -> int:
        """Codes in a segment, as bits."""
        return 16 - self.lut

    def bounds(self) -> Bounds:
        """See the base class."""
        return {"table": (-LARGEST_END, LARGEST_END) if self.reads_wide else self.range_of_result}

    def constants(self, x: CodeGrid, y: CodeGrid, call: Call) -> Constants:
        """See the base class.

        Raises:
            ValueError: a line between two ends crosses the range of the result so steeply that an end has no room.
        """
        step = 1 << self._segment if self.reads_wide else 1
        codes = np.arange(x.low, x.high + 1 + (step if self.reads_wide else 0), step)
        with np.errstate(all="ignore"):  # a curve has poles, which saturate
            found = self.reference(x.values(codes), call) / y.scale
        found = np.nan_to_num(found, nan=0.0, posinf=2.0**40, neginf=-(2.0**40))
        if self.reads_wide:
            wanted = np.rint((found + y.zero_point) * 2.0**FRACTION)
            ends = np.clip(wanted, -LARGEST_END, LARGEST_END)
            low, high = (np.minimum(ends[:-1], ends[1:]), np.maximum(ends[:-1], ends[1:]))
            crosses = (low < y.high * 2.0**FRACTION) & (high > y.low * 2.0**FRACTION)
            cut = ends != wanted
            if np.any(crosses & (cut[:-1] | cut[1:])):
                raise ValueError("its curve is too steep for the range of the result")
            return {"table": ends.astype(np.int64)}
        return {"table": np.clip(np.rint(found) + y.zero_point, y.low, y.high).astype(np.int64)}

    def formula(self, do: Operations, q: Integers, c: Mapping[str, Integers]) -> Integers:
        """See the base class."""
        place = q - self.range_of_codes[0]
        if not self.reads_wide:
            return do.stage("entry", do.looked_up(c["table"], place))
        segment, rest = do.shifted(place, self._segment), do.remainder(place, 1 << self._segment)
        start, end = (do.looked_up(c["table"], at) for at in (segment, segment + 1))
        line = do.stage("line", start * (1 << self._segment) + (end - start) * rest)
        return do.limited(do.rounded(line, self._segment + FRACTION), *self.range_of_result)

    def interpolation_error(self, width: float, x: CodeGrid, call: Call) -> float:
        """Largest distance of a line over a segment of this width from the curve."""
        del x, call
        return self.curvature * width**2 / 8

    def error_bound(self, x: CodeGrid, y: CodeGrid, call: Call) -> float:
        """See the base class: half a step, and for segments their lines and the rounding of their ends."""
        if not self.reads_wide:
            return 0.5 * y.scale * (1 + 1e-9)  # float64 rounds once more
        width = x.scale * 2.0**self._segment
        return self.interpolation_error(width, x, call) + y.scale * (0.5 + 2.0**-FRACTION)
