"""Largest and smallest of tensors on grids of their own: a multiplier for each, one shift, and one rounding."""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxqat.integer_functions.definition import Bounds, Call, CodeGrid, Constants, IntegerFunction, as_constants
from onnxqat.integer_functions.operations import Integers, Operations

NARROW, WIDE = 22, 38
"""Bits of a multiplier: products with codes of 8 bits stay in int32, those with 16 bits are rounded as finely."""


class Extreme(IntegerFunction, abc.ABC):
    """One of several numbers, element by element, with ONNX's broadcasting.

    Rounding keeps the order of numbers, so that one rounding of what is chosen gives what rounding of all would give.

    Args:
        x: ONNX type of the operands' codes.
        y: ONNX type of the result's codes.
        operands: how many tensors there are.
    """

    is_variadic = True

    def __init__(self, x: str, y: str, operands: int) -> None:
        super().__init__(x, y)
        self.operands = operands

    @abc.abstractmethod
    def chosen(self, do: Operations, a: Integers, b: Integers) -> Integers:
        """Return one of two numbers, by a function that numpy has as :meth:`of_values`."""

    @abc.abstractmethod
    def of_values(self, values: Any) -> npt.NDArray[np.float64]:
        """Return one of several numbers of float64."""

    @property
    def _bits(self) -> int:
        return WIDE if self.is_wide else NARROW

    def bounds(self) -> Bounds:
        """See the base class."""
        names = self.operand_names
        zero_points = {f"{name}_zero_point": self.range_of_codes for name in names}
        multipliers = {f"{name}_multiplier": (0, (1 << self._bits) - 1) for name in names}
        return {**zero_points, **multipliers, "y_shift": (1, self._bits), "y_zero_point": self.range_of_result}

    def constants(self, x: CodeGrid, y: CodeGrid, call: Call) -> Constants:
        """See the base class; a multiplier that is too large for its bits is the largest that there is."""
        grids = dict(zip(self.operand_names, (x, *call.others), strict=True))
        factors = {name: grid.scale / y.scale for name, grid in grids.items()}
        shift = min(max(self._bits - math.frexp(max(factors.values()))[1], 1), self._bits)
        most = (1 << self._bits) - 1
        zero_points = {f"{name}_zero_point": grid.zero_point for name, grid in grids.items()}
        multipliers = {f"{name}_multiplier": min(round(f * 2.0**shift), most) for name, f in factors.items()}
        found = {**zero_points, **multipliers, "y_shift": shift, "y_zero_point": y.zero_point}
        return as_constants(found)

    def formula(self, do: Operations, q: Integers, c: Mapping[str, Integers]) -> Integers:
        """See the base class."""
        names = zip(q, self.operand_names, strict=True)
        products = [(codes - c[f"{name}_zero_point"]) * c[f"{name}_multiplier"] for codes, name in names]
        found = do.stage("product", functools.reduce(functools.partial(self.chosen, do), products))
        return do.limited(do.rounded(found, c["y_shift"]) + c["y_zero_point"], *self.range_of_result)

    def reference(self, values: Any, call: Call) -> npt.NDArray[np.float64]:
        """See the base class."""
        del call
        return self.of_values(values)

    def error_bound(self, x: CodeGrid, y: CodeGrid, call: Call) -> float:
        """See the base class: half a step, and half a unit of a multiplier times the largest distance from zero."""
        shift = int(self.constants(x, y, call)["y_shift"])
        return y.scale * (0.5 + 2.0**-shift * (1.0 + self.span_of_codes / 2))
