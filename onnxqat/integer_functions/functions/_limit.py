"""Largest and smallest of tensors and of a constant, which is a limit among the codes of the result."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxqat.integer_functions.definition import Bounds, Call, CodeGrid, Constants
from onnxqat.integer_functions.functions._extreme import Extreme
from onnxqat.integer_functions.operations import Integers, Operations


class WithConstant(Extreme, abc.ABC):
    """One of several numbers and a constant, element by element.

    Rounding keeps the order of numbers, so the constant has the code that a quantizer gives it, and is compared behind
    the rounding of the operands: a clip at that code. Its shape is any that ONNX broadcasts, as one number for each channel.
    """

    weights = ("limit",)

    def bounds(self) -> Bounds:
        """See the base class."""
        return {**super().bounds(), "limit": self.range_of_result}

    def constants(self, x: CodeGrid, y: CodeGrid, call: Call) -> Constants:
        """See the base class; a constant outside of the result's grid is the end on its side.

        Raises:
            ValueError: the constant has no code.
        """
        limit = self._limit(call)
        if np.isnan(limit).any():
            raise ValueError("its constant is not a number")
        codes = np.clip(np.rint(limit / y.scale) + y.zero_point, *self.range_of_result)
        return {**super().constants(x, y, call), "limit": np.asarray(codes, np.int64)}

    def parameters(
        self, constants: Constants, grids: Sequence[CodeGrid], y: CodeGrid
    ) -> dict[str, npt.NDArray[np.float64]]:
        """See the base class."""
        del grids
        return {"limit": y.values(constants["limit"])}

    def formula(self, do: Operations, q: Integers, c: Mapping[str, Integers]) -> Integers:
        """See the base class."""
        return self.chosen(do, super().formula(do, q, c), c["limit"])

    def reference(self, values: Any, call: Call) -> npt.NDArray[np.float64]:
        """See the base class."""
        return self.of_values((*values, self._limit(call)))

    def _limit(self, call: Call) -> npt.NDArray[np.float64]:
        return np.asarray(call.parameters["limit"], np.float64)
