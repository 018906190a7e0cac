"""Weighted sum of tensors, as in a MixedOp of DARTS: products of all operands in one sum, and one requantization."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxqat.integer_functions.definition import Bounds, Call, CodeGrid, Constants, IntegerFunction
from onnxqat.integer_functions.operations import Integers, Operations

NARROW, WIDE = 28, 60
"""Bits of the sum of products, and of the addend: what is shifted stays in int32 for codes of 8 bits, else in int64."""

HELD = 22
"""Significant bits of multipliers and bias: float32 holds each of these numbers times a scale, so that a weight read
back gives the same number."""


class Function(IntegerFunction):
    """``w_1 * x_1 + ... + w_n * x_n + bias``, with weights and a bias that are constant.

    ``codes = (sum of q_i * M_i + A) >> shift``, rounded to nearest, with ``M_i`` next to ``w_i * s_i / s_y * 2**shift``: one
    shift for all, so that the sum is one of whole numbers. The addend ``A`` holds the bias and all zero points. A weight may
    have one number for each channel, in the shape in which it multiplies.

    Args:
        x: ONNX type of the operands' codes.
        y: ONNX type of the result's codes.
        operands: how many tensors are added.
    """

    operator = "WeightedSum"
    parts = ("Add", "Div", "Mul", "Neg", "Sub", "Sum")
    is_variadic = True

    def __init__(self, x: str, y: str, operands: int) -> None:
        super().__init__(x, y)
        self.operands = operands
        self.weights = (*(f"weight_{index}" for index in range(1, operands + 1)), "bias")

    @property
    def _total(self) -> int:
        return WIDE if self.is_wide else NARROW

    @property
    def _largest(self) -> int:
        """Largest multiplier with which the sum of products has its bits."""
        largest_code = max(map(abs, self.range_of_codes))
        return (1 << self._total) // (self.operands * largest_code)

    @property
    def _end(self) -> float:
        """Largest product of a weight with a power of two that is a multiplier; a larger one takes the next shift.

        It lies between the numbers that are next to it with either shift, above the largest multiplier. A weight that
        is read back, next to the one that was given, then has the shift that it had: where one tensor is scaled, as by a
        Neg, the weight is next to 1, and that is next to the largest multiplier of int8.
        """
        most = _whole(self._largest)
        step = max(2, 1 << max(most.bit_length() - HELD, 0))  # of multipliers with the next shift, in units of this one
        end = most // step * step + step / 2
        return end if end > most else most + step / 4

    def bounds(self) -> Bounds:
        """See the base class."""
        factors = dict.fromkeys(self.weights[:-1], (-self._largest, self._largest))
        return {**factors, "bias": (-(1 << self._total) + 1, (1 << self._total) - 1), "y_shift": (1, self._total)}

    def constants(self, x: CodeGrid, y: CodeGrid, call: Call) -> Constants:
        """See the base class.

        Raises:
            ValueError: a weight, or the bias, is so large that no bit of a fraction is left.
        """
        grids = (x, *call.others)
        factors = [self._weight(call, index) * grid.scale / y.scale for index, grid in enumerate(grids)]
        # Zero points of operands move the sum by as much as their products, so the addend counts them exactly below.
        addend = self._bias(call) / y.scale + y.zero_point
        addend = addend - sum(factor * grid.zero_point for factor, grid in zip(factors, grids, strict=True))
        largest = max(float(np.abs(factor).max()) for factor in factors)
        room = [math.log2(self._end / largest)] if largest else []
        furthest = float(np.abs(addend).max())
        room += [math.log2(((1 << self._total) - 1) / (furthest + self.operands * 0.5))] if furthest else []
        shift = min([self._total, *(math.floor(bits) for bits in room)])
        if shift < 1:
            raise ValueError(f"its weights reach {largest:g} steps of the result, and its bias {furthest:g}")
        most = _whole(self._largest)
        numbers = [np.asarray(np.clip(_held(factor * 2.0**shift), -most, most)) for factor in factors]
        # With the multipliers as they are rounded, so that zeros of all operands give the bias and no rounding of theirs.
        moved = sum(number * grid.zero_point for number, grid in zip(numbers, grids, strict=True))
        whole = _held(self._bias(call) / y.scale * 2.0**shift) + (y.zero_point << shift) - moved
        bound = (1 << self._total) - 1
        held = dict(zip(self.weights, [*numbers, np.asarray(np.clip(whole, -bound, bound), np.int64)], strict=True))
        return {**held, "y_shift": np.asarray(shift, np.int64)}

    def parameters(
        self, constants: Constants, grids: Sequence[CodeGrid], y: CodeGrid
    ) -> dict[str, npt.NDArray[np.float64]]:
        """See the base class."""
        unit = y.scale * 2.0 ** -int(constants["y_shift"])
        moved = constants["bias"] - (y.zero_point << int(constants["y_shift"]))
        found: dict[str, npt.NDArray[np.float64]] = {}
        for name, grid in zip(self.weights[:-1], grids, strict=True):
            found[name] = np.asarray(constants[name] * unit / grid.scale, np.float64)
            moved = moved + constants[name] * grid.zero_point
        return {**found, "bias": np.asarray(moved * unit, np.float64)}

    def _weight(self, call: Call, index: int) -> npt.NDArray[np.float64]:
        return np.asarray(call.parameters.get(self.weights[index], 1.0), np.float64)

    def _bias(self, call: Call) -> npt.NDArray[np.float64]:
        return np.asarray(call.parameters.get("bias", 0.0), np.float64)

    def formula(self, do: Operations, q: Integers, c: Mapping[str, Integers]) -> Integers:
        """See the base class."""
        total = c["bias"]
        for codes, name in zip(q, self.weights, strict=False):
            total = total + codes * c[name]
        return do.limited(do.rounded(do.stage("sum", total), c["y_shift"]), *self.range_of_result)

    def reference(self, values: Any, call: Call) -> npt.NDArray[np.float64]:
        """See the base class."""
        products = [self._weight(call, index) * value for index, value in enumerate(values)]
        return np.asarray(sum(products) + self._bias(call))

    def error_bound(self, x: CodeGrid, y: CodeGrid, call: Call) -> float:
        """See the base class: half a step, and the rounding of each multiplier times its operand's largest step."""
        shift = int(self.constants(x, y, call)["y_shift"])
        products = [
            float(np.abs(self._weight(call, index)).max()) * grid.scale * self.span_of_codes
            for index, grid in enumerate((x, *call.others))
        ]
        largest = sum(products) + float(np.abs(self._bias(call)).max())
        return y.scale * (0.5 + 2.0**-shift * (1.0 + self.operands * self.span_of_codes)) + 2.0**-HELD * largest


def _whole(number: int) -> int:
    """The largest whole number of :data:`HELD` significant bits that is not above `number`."""
    unused = max(number.bit_length() - HELD, 0)
    return number >> unused << unused


def _held(numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Whole numbers next to `numbers`, of :data:`HELD` significant bits."""
    unit = np.exp2(np.maximum(np.frexp(numbers)[1] - HELD, 0))
    return np.asarray(np.rint(numbers / unit) * unit, np.int64)
