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
from onnxqat.arithmetic._arrays import (
    Array,
    double,
    exponent_of,
    exponential,
    frexp,
    single,
    where,
    whole,
    whole_number,
)
from onnxqat.arithmetic._base import Accumulator
from onnxqat.arithmetic._grid import Grid
from onnxqat.arithmetic._rounding import Rounding, shift_right

_ADD_SHIFT, _WIDE_ADD_SHIFT = 20, 15
"""Bits by which the operands of a sum are shifted to the left before they are scaled (``add.cc``), with codes of 8 and of
16 bits."""


class Arithmetic(_base.Arithmetic):
    """Layers, Add, Mul and means.

    Args:
        accumulator: of layers.
        rounding: ``half-away``: the product with the multiplier is rounded and doubled, then shifted and rounded again
            (``SaturatingRoundingDoublingHighMul``, ``RoundingDivideByPOT``), TFLite's default and CMSIS-NN's. Others
            round once; ``half-up`` is what TFLite does when it is built with ``TFLITE_SINGLE_ROUNDING``.
    """

    name = "fixed-point"
    has = frozenset({"padded-average", "conversion"})

    def __init__(self, accumulator: Accumulator | None = None, rounding: Rounding = "half-away") -> None:
        super().__init__(accumulator)
        self.rounding: Rounding = rounding

    def requantize(self, total: Array, activation: Array, weight: Array, output: Grid) -> Array:
        """See the base class."""
        ratio = double(activation) * double(weight) / double(output.scale)
        if self.accumulator.bits > 32:
            return output.limited(self._scaled_wide(whole(total), ratio))
        return output.limited(self._scaled(whole(total), ratio))

    def _scaled_wide(self, x: Array, ratio: Array) -> Array:
        """``x * ratio`` of sums of up to 48 bits: the multiplier keeps 15 bits, and one shift rounds half up.

        Source: ``MultiplyByQuantizedMultiplier`` of int64 in ``common.cc``, for activations of 16 bits.
        """
        multiplier, exponent = self._factor(ratio)
        reduced = where(multiplier < 0x7FFF0000, (multiplier + (1 << 15)) >> 16, multiplier * 0 + 0x7FFF)
        return single(shift_right(x * reduced, (15 - exponent).clip(0, 62), "half-up"))

    def add(self, a: Array, b: Array, grid_a: Grid, grid_b: Grid, output: Grid) -> Array:
        """See the base class."""
        of_a, of_b = double(grid_a.scale), double(grid_b.scale)
        twice = 2.0 * where(of_a > of_b, of_a, of_b)
        # With the shift of 8 bits a code of 16 bits times the multiplier would leave int64.
        bits = _WIDE_ADD_SHIFT if _is_wide(grid_a) or _is_wide(grid_b) else _ADD_SHIFT
        parts = (self._scaled(whole(x) << bits, s / twice, wide=True) for x, s in ((a, of_a), (b, of_b)))
        total = whole(functools.reduce(operator.add, parts))
        return output.limited(self._scaled(total, twice / (double(output.scale) * 2.0**bits)))

    def multiply(self, a: Array, b: Array, grid_a: Grid, grid_b: Grid, output: Grid) -> Array:
        """See the base class; ``mul.cc`` takes the product and the quotient of the scales in float32."""
        ratio = grid_a.scale * grid_b.scale / output.scale
        product = double(a) * double(b) if _is_wide(grid_a) or _is_wide(grid_b) else a * b  # float32 holds 24 bits
        return output.limited(self._scaled(whole(product), double(ratio)))

    def global_average(self, total: Array, count: Array | int, grid: Grid, output: Grid) -> Array:
        """See the base class; as TFLite's Mean, whose multiplier has ``1 / count`` in it, without its fraction."""
        multiplier, exponent = self._factor(double(grid.scale) / double(output.scale))
        divisor = whole_number(count)
        # A power of two not above `count` keeps the quotient's bits; a shift by more than 31 would leave nothing.
        kept = (divisor.bit_length() if isinstance(divisor, int) else exponent_of(divisor)) - 1
        room = (31 + exponent).clip(0, None)
        power = where(room < kept, room, kept)
        return output.limited(single(self._product(whole(total), (multiplier << power) // divisor, exponent - power)))

    def average(self, places: Iterable[Array], count: Array | int, grid: Grid, output: Grid) -> Array:
        """See the base class: on the grid of the input, where TFLite's AveragePool stays, codes are divided.

        For another grid, which TFLite has no kernel for, one multiplier with ``1 / count`` in it rounds once, as Mean's.
        Rounding to the input's grid first would lose what a finer one holds: the means of an image lie close together.
        """
        if bool(grid.scale == output.scale) and bool(grid.zero_point == output.zero_point):
            return output.limited(single(self._average_on_grid(places, count, grid)))
        return self.global_average(functools.reduce(operator.add, places), count, grid, output)

    def _average_on_grid(self, places: Iterable[Array], count: Array | int, grid: Grid) -> Array:
        """Steps of means, int64: codes, not steps, are added up and divided, ties away from zero."""
        codes = functools.reduce(operator.add, places) + count * grid.zero_point
        magnitude = (whole(abs(codes)) + whole_number(count) // 2) // whole_number(count)
        mean = where(codes < 0, -magnitude, magnitude)
        return (mean - whole_number(grid.zero_point)).clip(
            whole_number(grid.low - grid.zero_point), whole_number(grid.high - grid.zero_point)
        )

    def convert(self, x: Array, grid: Grid, output: Grid) -> Array:
        """See the base class; ``Requantize`` in ``reference/requantize.h``."""
        # A ratio above the number of codes takes every step but 0 to an end of the grid, and a larger one leaves int64.
        ratio = (double(grid.scale) / double(output.scale)).clip(None, output.high - output.low + 1.0)
        return output.limited(self._scaled(whole(x), ratio))

    def sigmoid(self, x: Array) -> Array:
        """See the base class; the kernel's table is made with the functions of the C library."""
        return single(1 / (1 + exponential(-double(x))))

    def tanh(self, x: Array) -> Array:
        """See the base class."""
        power = exponential(-2 * abs(double(x)))
        size = (1 - power) / (1 + power)
        return single(where(x < 0, -size, size))

    def _scaled(self, x: Array, ratio: Array, *, wide: bool = False) -> Array:
        """``x * ratio`` as ``MultiplyByQuantizedMultiplier`` computes it: float32, float64 where `wide`."""
        result = self._product(x, *self._factor(ratio))
        return double(result) if wide else single(result)

    def _factor(self, ratio: Array) -> tuple[Array, Array]:
        """Multiplier of 31 bits and exponent of two that stand for `ratio` (``QuantizeMultiplier``)."""
        mantissa, exponent = frexp(ratio)
        multiplier = whole((mantissa * 2.0**31).round())
        carried = multiplier == 2**31  # a mantissa that rounds up to 1 is a half at the next exponent
        return where(carried, multiplier >> 1, multiplier), where(carried, exponent + 1, exponent)

    def _product(self, x: Array, multiplier: Array, exponent: Array) -> Array:
        """``x * multiplier * 2**(exponent - 31)``, int64, rounded."""
        if self.rounding != "half-away":
            return shift_right(x * multiplier, 31 - exponent, self.rounding)
        left = where(exponent > 0, exponent, exponent * 0)
        high = shift_right((x << left) * multiplier, left * 0 + 31, "half-up")
        return shift_right(high, left - exponent, "half-away")


def _is_wide(grid: Grid) -> bool:
    """Check whether a grid has more codes than 8 bits hold."""
    return grid.high - grid.low > 255
