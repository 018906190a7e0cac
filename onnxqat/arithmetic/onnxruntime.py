"""Integer kernels of onnxruntime's CPU provider: int32 sums, float32 behind them.

As of x86 processors with AVX2 or newer. Other processors have other kernels for sums of two tensors (NEON shifts whole
numbers). Source: onnxruntime/core/mlas/lib (``qladd_avx2.cpp``, ``qlmul.cpp``, ``qlgavgpool.cpp``,
``MlasRequantizeOutput``) and onnxruntime/contrib_ops/cpu/quantization (``qlinear_pool.cc``, ``qlinear_softmax.cc``),
version 1.24; with 1.32 compared.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Iterable

from onnxqat.arithmetic import _arrays, _base
from onnxqat.arithmetic._arrays import Array, double, fused, single
from onnxqat.arithmetic._grid import Grid

LARGEST_FLOAT = 3.4028234663852886e38
"""The largest float32."""


def _unsigned(grid: Grid) -> Grid:
    """`grid` as kernels see it: on x86 the optimizer of a session makes int8 tensors uint8 (``qdq_s8_to_u8.cc``).

    The same steps, but a zero point that is added before rounding takes other last bits away.
    """
    if not -128 <= grid.low < 0:
        return grid
    return dataclasses.replace(grid, zero_point=grid.zero_point + 128, low=grid.low + 128, high=grid.high + 128)


class Arithmetic(_base.Arithmetic):
    """QLinearConv, QLinearMatMul, QGemm, QLinearAdd, QLinearMul, QLinearSoftmax and the pools."""

    name = "onnxruntime"
    has = frozenset({"softmax", "padded-average"})

    def requantize(self, total: Array, activation: Array, weight: Array, output: Grid) -> Array:
        """See the base class: times ``x_scale * w_scale / y_scale``, in this order."""
        return output.limited((single(total) * (activation * weight / output.scale)).round())

    def add(self, a: Array, b: Array, grid_a: Grid, grid_b: Grid, output: Grid) -> Array:
        """See the base class.

        The zero points are folded into one number first, then one fused multiply-add an operand is taken, the second
        operand's first; the zero point of the output is added before rounding.
        """
        grid_a, grid_b, output = _unsigned(grid_a), _unsigned(grid_b), _unsigned(output)
        ratio_a, ratio_b = grid_a.scale / output.scale, grid_b.scale / output.scale
        offset = output.zero_point - fused(ratio_a, grid_a.zero_point, ratio_b * grid_b.zero_point)
        total = fused(b + grid_b.zero_point, ratio_b, offset)
        return output.saturated(fused(a + grid_a.zero_point, ratio_a, total).round())

    def multiply(self, a: Array, b: Array, grid_a: Grid, grid_b: Grid, output: Grid) -> Array:
        """See the base class; the zero point is added before rounding."""
        output, ratio = _unsigned(output), grid_a.scale * grid_b.scale / output.scale
        return output.saturated((a * b * ratio + output.zero_point).round())

    def global_average(self, total: Array, count: int, grid: Grid, output: Grid) -> Array:
        """See the base class."""
        return output.limited((single(total) * (grid.scale / (output.scale * count))).round())

    def average(self, places: Iterable[Array], count: Array | int, grid: Grid, output: Grid) -> Array:
        """See the base class: dequantized values are added in float32, one after the other."""
        total, output = functools.reduce(operator.add, (place * grid.scale for place in places)), _unsigned(output)
        return output.saturated((total / count / output.scale + output.zero_point).round())

    def softmax(self, x: Array, grid: Grid, output: Grid) -> Array:
        """See the base class.

        Exponentials come from a table of 256 float32, whose largest entry leaves room in float32 for the sum of a row
        and a factor of ``exp(5)``; they are added in order. What they are multiplied by is ``1 / scale`` without its
        fraction, and the quotient is rounded once.
        """
        length = _arrays.scalar(x.shape[-1], x)
        room = double(_arrays.single(_arrays.logarithm(double(LARGEST_FLOAT / single(length))))) - 5
        distances = double(_arrays.counted(-255, 0, x))
        scale = double(grid.scale)
        table = single(_arrays.exponential((distances + room.clip(0, None) / scale) * scale))
        parts = _arrays.looked_up(table, x - _arrays.largest_of_rows(x) + 255)
        total = double(_arrays.added_in_order(parts))
        shares = (double(parts) * double(_arrays.floor(1 / output.scale)) / total).round()
        return output.limited(single(shares))
