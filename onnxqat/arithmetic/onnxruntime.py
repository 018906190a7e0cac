"""Integer kernels of onnxruntime's CPU provider: int32 sums, float32 behind them.

As of x86 processors with AVX2 or newer. Other processors have other kernels for sums of two tensors (NEON shifts whole
numbers). Source: onnxruntime/core/mlas/lib (``qladd_avx2.cpp``, ``qlmul.cpp``, ``qlgavgpool.cpp``,
``MlasRequantizeOutput``) and onnxruntime/contrib_ops/cpu/quantization (``qlinear_pool.cc``), version 1.24.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable

from onnxqat.arithmetic import _base
from onnxqat.arithmetic._arrays import Array, fused, single
from onnxqat.arithmetic._grid import Grid


class Arithmetic(_base.Arithmetic):
    """QLinearConv, QLinearMatMul, QGemm, QLinearAdd, QLinearMul and the pools."""

    name = "onnxruntime"

    def requantize(self, total: Array, activation: Array, weight: Array, output: Grid) -> Array:
        """See the base class: times ``x_scale * w_scale / y_scale``, in this order."""
        return output.limited((single(total) * (activation * weight / output.scale)).round())

    def add(self, a: Array, b: Array, grid_a: Grid, grid_b: Grid, output: Grid) -> Array:
        """See the base class.

        The zero points are folded into one number first, then one fused multiply-add an operand is taken, the second
        operand's first; the zero point of the output is added before rounding.
        """
        ratio_a, ratio_b = grid_a.scale / output.scale, grid_b.scale / output.scale
        offset = output.zero_point - fused(ratio_a, grid_a.zero_point, ratio_b * grid_b.zero_point)
        total = fused(b + grid_b.zero_point, ratio_b, offset)
        return output.saturated(fused(a + grid_a.zero_point, ratio_a, total).round())

    def multiply(self, a: Array, b: Array, grid_a: Grid, grid_b: Grid, output: Grid) -> Array:
        """See the base class; the zero point is added before rounding."""
        ratio = grid_a.scale * grid_b.scale / output.scale
        return output.saturated((a * b * ratio + output.zero_point).round())

    def global_average(self, total: Array, count: int, grid: Grid, output: Grid) -> Array:
        """See the base class."""
        return output.limited((single(total) * (grid.scale / (output.scale * count))).round())

    def average(self, places: Iterable[Array], count: int, grid: Grid, output: Grid) -> Array:
        """See the base class: dequantized values are added in float32, one after the other."""
        total = functools.reduce(operator.add, (place * grid.scale for place in places))
        return output.saturated((total / count / output.scale + output.zero_point).round())
