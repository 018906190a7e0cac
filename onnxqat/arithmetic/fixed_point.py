"""Fixed-point kernels of TensorFlow Lite and CMSIS-NN: a 31-bit multiplier and a rounding shift.

Source: tensorflow/lite/kernels/internal (``common.h``, ``quantization_util.cc``, ``reference/integer_ops``), Jacob et
al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference", CVPR 2018, section
2.2; CMSIS-NN has the same numbers (``arm_nn_requantize``).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable

from onnxqat.arithmetic import _base
from onnxqat.arithmetic._arrays import Array, double, frexp, single, where, whole
from onnxqat.arithmetic._base import Accumulator
from onnxqat.arithmetic._grid import Grid
from onnxqat.arithmetic._rounding import Rounding, shift_right

_ADD_SHIFT = 20
"""Bits by which the operands of a sum are shifted to the left before they are scaled (``add.cc``, for 8 bits)."""


class Arithmetic(_base.Arithmetic):
    """Layers, Add, Mul and means.

    Args:
        accumulator: of layers.
        rounding: ``half-away``: the product with the multiplier is rounded and doubled, then shifted and rounded again
            (``SaturatingRoundingDoublingHighMul``, ``RoundingDivideByPOT``), TFLite's default and CMSIS-NN's. Others
            round once; ``half-up`` is what TFLite does when it is built with ``TFLITE_SINGLE_ROUNDING``.
    """

    name = "fixed-point"
    has = frozenset({"padded-average"})

    def __init__(self, accumulator: Accumulator | None = None, rounding: Rounding = "half-away") -> None:
        super().__init__(accumulator)
        self.rounding: Rounding = rounding

    def requantize(self, total: Array, activation: Array, weight: Array, output: Grid) -> Array:
        """See the base class."""
        ratio = double(activation) * double(weight) / double(output.scale)
        return output.limited(self._scaled(whole(total), ratio))

    def add(self, a: Array, b: Array, grid_a: Grid, grid_b: Grid, output: Grid) -> Array:
        """See the base class."""
        of_a, of_b = double(grid_a.scale), double(grid_b.scale)
        twice = 2.0 * where(of_a > of_b, of_a, of_b)
        parts = (self._scaled(whole(x) << _ADD_SHIFT, s / twice, wide=True) for x, s in ((a, of_a), (b, of_b)))
        total = whole(functools.reduce(operator.add, parts))
        return output.limited(self._scaled(total, twice / (double(output.scale) * 2.0**_ADD_SHIFT)))

    def multiply(self, a: Array, b: Array, grid_a: Grid, grid_b: Grid, output: Grid) -> Array:
        """See the base class."""
        ratio = double(grid_a.scale) * double(grid_b.scale) / double(output.scale)
        return output.limited(self._scaled(whole(a * b), ratio))

    def global_average(self, total: Array, count: Array | int, grid: Grid, output: Grid) -> Array:
        """See the base class; as of TFLite's Mean."""
        return output.limited(self._scaled(whole(total), double(grid.scale) / (double(output.scale) * double(count))))

    def average(self, places: Iterable[Array], count: Array | int, grid: Grid, output: Grid) -> Array:
        """See the base class; TFLite's AveragePool has one grid on both sides, and so is a Mean here as well."""
        return self.global_average(functools.reduce(operator.add, places), count, grid, output)

    def _scaled(self, x: Array, ratio: Array, *, wide: bool = False) -> Array:
        """``x * ratio`` as ``MultiplyByQuantizedMultiplier`` computes it: float32, float64 where `wide`."""
        mantissa, exponent = frexp(ratio)
        multiplier = whole((mantissa * 2.0**31).round())
        carried = multiplier == 2**31  # a mantissa that rounds up to 1 is a half at the next exponent
        multiplier, exponent = where(carried, multiplier >> 1, multiplier), where(carried, exponent + 1, exponent)
        if self.rounding == "half-away":
            left = where(exponent > 0, exponent, exponent * 0)
            high = shift_right((x << left) * multiplier, left * 0 + 31, "half-up")
            result = shift_right(high, left - exponent, "half-away")
        else:
            result = shift_right(x * multiplier, 31 - exponent, self.rounding)
        return double(result) if wide else single(result)
