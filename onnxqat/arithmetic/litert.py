"""LiteRT's reference kernels (``BuiltinRefOpResolver``) of 2026: fixed-point but for fully connected layers.

Source: google-ai-edge/LiteRT, ``tflite/kernels`` (``internal/reference/integer_ops/fully_connected.h``,
``internal/reference/softmax.h``, ``activations.cc``); compared with the interpreter of ai-edge-litert 2.3.
"""

from __future__ import annotations

from collections.abc import Iterable

from onnxqat.arithmetic import _gemmlowp, fixed_point
from onnxqat.arithmetic._arrays import Array, double, exponent_of, largest_of_rows, single, where, whole
from onnxqat.arithmetic._grid import Grid
from onnxqat.arithmetic._rounding import shift_right

_SCALED_BITS = 5
"""Integer bits of the differences that Softmax takes exponentials of."""
_SUM_BITS = 12
"""Integer bits of the sum of the exponentials of a row."""
_SHARE = 1 / 256
"""Scale of Softmax."""


class Arithmetic(fixed_point.Arithmetic):
    """Those of ``fixed-point``, Softmax, and FULLY_CONNECTED, which multiplies sums by a factor in float64."""

    name = "litert"
    has = frozenset({"softmax", "padded-average", "conversion"})

    def requantize_matrix(self, total: Array, activation: Array, weight: Array, output: Grid) -> Array:
        """See the base class: rounded once, ties away from zero."""
        scaled = double(total) * (double(activation) * double(weight) / double(output.scale))
        size = (abs(scaled) + 0.5) // 1
        return output.limited(single(where(scaled < 0, -size, size)))

    def average(self, places: Iterable[Array], count: Array | int, grid: Grid, output: Grid) -> Array:
        """See the base class: AVERAGE_POOL_2D on the grid of its input, and QUANTIZE behind it for another."""
        steps = self._average_on_grid(places, count, grid)
        return output.limited(self._scaled(steps, double(grid.scale) / double(output.scale)))

    def softmax(self, x: Array, grid: Grid, output: Grid) -> Array:
        """See the base class: exponentials and the reciprocal of their sum in fixed point.

        Differences that are too large for five integer bits count as nothing.
        """
        multiplier, left = self._factor((double(grid.scale) * 2.0 ** (31 - _SCALED_BITS)).clip(None, 2.0**31 - 1))
        steps = whole(x - largest_of_rows(x))
        least = -(((2**_SCALED_BITS - 1) << (31 - _SCALED_BITS)) >> left)
        counts = steps >= least
        scaled = _gemmlowp.doubled_high(where(counts, steps, steps * 0) << left, multiplier)
        powers = _gemmlowp.exponential(scaled, _SCALED_BITS)
        parts = where(counts, _gemmlowp.divided(powers, _SUM_BITS), powers * 0)
        total = parts.sum(-1)[..., None]
        over = exponent_of(total)  # bits of the sum
        shifted = (total << (32 - over)) - 2**31
        factor = _gemmlowp.reciprocal_of_one_plus(shifted)
        bits = _SUM_BITS - (32 - over) + 31 - 8
        shares = shift_right(_gemmlowp.doubled_high(powers, factor), bits, "half-away")
        codes = where(counts, shares, shares * 0).clip(0, 255)
        return output.limited(self._scaled(codes, _SHARE / double(output.scale)))
