"""Softmax over the places that a mask keeps: distances from the largest code among them, and shares of their sum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxqat.integer_functions.definition import Bounds, Call, CodeGrid, Constants
from onnxqat.integer_functions.functions import softmax
from onnxqat.integer_functions.operations import Integers, Operations


class Function(softmax.Function):
    """Shares of a row among kept places; the others have none, and no place of a row that keeps nothing has any.

    The second operand is the mask, of any codes: the one of zero stands for what is left out.
    """

    operator = "MaskedSoftmax"
    parts = ("Softmax",)
    operands = 2

    def bounds(self) -> Bounds:
        """See the base class."""
        return {"mask_zero_point": self.range_of_codes, **super().bounds()}

    def constants(self, x: CodeGrid, y: CodeGrid, call: Call) -> Constants:
        """See the base class."""
        (mask,) = call.others
        return {"mask_zero_point": np.asarray(mask.zero_point, np.int64), **super().constants(x, y, call)}

    def formula(self, do: Operations, q: Integers, c: Mapping[str, Integers]) -> Integers:
        """See the base class."""
        codes, mask = q
        left_out = do.is_less(do.magnitude(mask - c["mask_zero_point"]), 1)
        low, _ = self.range_of_codes
        largest = do.largest_of_row(do.where(left_out, low, codes))
        powers = self.exponential.of_distances(do, do.limited(largest - codes, 0, self.span_of_codes), c)
        return self.shares(do, do.where(left_out, 0, powers), c)

    def reference(self, values: Any, call: Call) -> npt.NDArray[np.float64]:
        """See the base class."""
        scores, mask = values
        kept = mask != 0
        largest = np.where(kept, scores, -np.inf).max(axis=call.axes, keepdims=True)
        powers = np.where(kept, np.exp(scores - np.where(np.isfinite(largest), largest, 0.0)), 0.0)
        total = powers.sum(axis=call.axes, keepdims=True)
        return np.asarray(powers / np.where(total > 0, total, 1.0))
