"""com.microsoft operators from codes to codes: the codes that onnxruntime computes, without a gradient.

The texts of these operators leave open where is rounded. What onnxruntime's kernels do is followed: QLinearAdd,
QLinearMul and QLinearAveragePool add the zero point before they round, the others behind; QLinearSoftmax works on a
table of exponentials (:mod:`onnxqat.arithmetic.onnxruntime`).
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import fx
from torch.nn import functional

from onnxqat.arithmetic import Grid, onnxruntime
from onnxqat.bridge.importing.builder import Lowered, NodeView
from onnxqat.bridge.lowering.activation import leaky_relu_of
from onnxqat.bridge.lowering.convolution import torch_padding
from onnxqat.bridge.lowering.integer import centre, limits, requantize
from onnxqat.bridge.lowering.pooling import Window, all_pads, padded_max_pool
from onnxqat.bridge.lowering.quantization import dequantize_linear, quantize_linear


def com_microsoft_quantize_linear(n: NodeView) -> Lowered:
    """com.microsoft QuantizeLinear 1, outside of a recognised quantizer."""
    return quantize_linear(n)


def com_microsoft_dequantize_linear(n: NodeView) -> Lowered:
    """com.microsoft DequantizeLinear 1, outside of a recognised quantizer."""
    return dequantize_linear(n)


def as_float(zero_point: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
    """A zero point as float32, 0 where it is omitted."""
    if zero_point is None:
        return torch.zeros((), dtype=torch.float32, device=like.device)
    return zero_point.to(torch.float32).reshape(())


def round_to_codes(values: torch.Tensor, low: int, high: int, dtype: torch.dtype) -> torch.Tensor:
    """``saturate(round_half_even(values))``."""
    return torch.round(values).clamp(low, high).to(dtype)


def to_codes(
    values: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor | None, low: int, high: int, dtype: torch.dtype
) -> torch.Tensor:
    """``saturate(round_half_even(values / scale) + zero_point)``."""
    return (torch.round(values / scale) + as_float(zero_point, values)).clamp(low, high).to(dtype)


def to_values(codes: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor | None) -> torch.Tensor:
    """``(codes - zero_point) * scale`` in float32."""
    return centre(codes, zero_point, 0, torch.float32) * scale.reshape(())


def add_codes(
    a: torch.Tensor,
    a_scale: torch.Tensor,
    a_zero: torch.Tensor | None,
    b: torch.Tensor,
    b_scale: torch.Tensor,
    b_zero: torch.Tensor | None,
    y_scale: torch.Tensor,
    y_zero: torch.Tensor | None,
) -> torch.Tensor:
    """The sum on the grid of the result, not rounded yet; what does not depend on the codes is added up first."""
    a_ratio, b_ratio = a_scale / y_scale, b_scale / y_scale
    fixed = as_float(y_zero, a) - (a_ratio * as_float(a_zero, a) + b_ratio * as_float(b_zero, a))
    return b.to(torch.float32) * b_ratio + (a.to(torch.float32) * a_ratio + fixed)


def multiply_codes(
    a: torch.Tensor,
    a_scale: torch.Tensor,
    a_zero: torch.Tensor | None,
    b: torch.Tensor,
    b_scale: torch.Tensor,
    b_zero: torch.Tensor | None,
    y_scale: torch.Tensor,
    y_zero: torch.Tensor | None,
) -> torch.Tensor:
    """The product on the grid of the result, not rounded yet."""
    product = centre(a, a_zero, 0, torch.float32) * centre(b, b_zero, 0, torch.float32)
    return product * (a_scale * b_scale / y_scale) + as_float(y_zero, a)


def _parameter(n: NodeView, index: int) -> fx.Node | None:
    """A scale or zero point; never a Parameter."""
    return n.buffer(index) if n.has(index) else None


def _binary(n: NodeView, function: Any) -> Lowered:
    operands = [n.tensor(0), n.buffer(1), _parameter(n, 2), n.tensor(3), n.buffer(4), _parameter(n, 5)]
    return n.call(round_to_codes, n.call(function, *operands, n.buffer(6), _parameter(n, 7)), *limits(n, n.dtype(0)))


def com_microsoft_q_linear_add(n: NodeView) -> Lowered:
    """QLinearAdd 1."""
    return _binary(n, add_codes)


def com_microsoft_q_linear_mul(n: NodeView) -> Lowered:
    """QLinearMul 1."""
    return _binary(n, multiply_codes)


def com_microsoft_q_linear_sigmoid(n: NodeView) -> Lowered:
    """QLinearSigmoid 1."""
    x = n.call(to_values, n.tensor(0), n.buffer(1), _parameter(n, 2))
    return n.call(to_codes, n.call(torch.sigmoid, x), n.buffer(3), _parameter(n, 4), *limits(n, n.dtype(0)))


def com_microsoft_q_linear_leaky_relu(n: NodeView) -> Lowered:
    """QLinearLeakyRelu 1."""
    x = n.call(to_values, n.tensor(0), n.buffer(1), _parameter(n, 2))
    y = n.call(leaky_relu_of, x, n.attr("alpha", 0.01))
    return n.call(to_codes, y, n.buffer(3), _parameter(n, 4), *limits(n, n.dtype(0)))


def softmax_of_codes(
    x: torch.Tensor,
    x_scale: torch.Tensor,
    y_scale: torch.Tensor,
    y_zero: torch.Tensor,
    low: int,
    high: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Softmax over the last axis, by a table of exponentials."""
    grid = Grid(x_scale.reshape(()), 0.0, low, high)
    output = Grid(y_scale.reshape(()), y_zero.reshape(()).to(torch.float32), low, high)
    steps = onnxruntime.Arithmetic().softmax(x.to(torch.float32), grid, output)
    codes: torch.Tensor = (steps + output.zero_point).to(dtype)
    return codes


def com_microsoft_q_linear_softmax(n: NodeView) -> Lowered:
    """QLinearSoftmax 1: along an axis, or before opset 13 over all axes from it on."""
    bounds, axis, x = limits(n, n.dtype(0)), int(n.attr("axis", -1)), n.tensor(0)
    scales = (n.buffer(1), n.buffer(3), n.buffer(4))
    if int(n.attr("opset")) < 13:
        flat = n.call(torch.flatten, x, axis)
        return n.call(torch.Tensor.view_as, n.call(softmax_of_codes, flat, *scales, *bounds), x)
    if axis == -1 or axis + 1 == n.rank(0):
        return n.call(softmax_of_codes, x, *scales, *bounds)
    last = n.call(torch.movedim, x, axis, -1)
    return n.call(torch.movedim, n.call(softmax_of_codes, last, *scales, *bounds), -1, axis)


def _moved(n: NodeView, index: int, scale: fx.Node, zero_point: fx.Node | None, bounds: Any) -> fx.Node:
    """Input `index`, with its scale and zero point behind it, on another grid."""
    values = n.call(to_values, n.tensor(index), n.buffer(index + 1), _parameter(n, index + 2))
    return n.call(to_codes, values, scale, zero_point, *bounds)


def com_microsoft_q_linear_concat(n: NodeView) -> Lowered:
    """QLinearConcat 1."""
    scale, zero_point, bounds = n.buffer(0), _parameter(n, 1), limits(n, n.dtype(2))
    parts = [_moved(n, index, scale, zero_point, bounds) for index in range(2, n.count, 3)]
    return n.call(torch.cat, parts, int(n.attr("axis")))


def com_microsoft_q_linear_where(n: NodeView) -> Lowered:
    """QLinearWhere 1."""
    scale, zero_point, bounds = n.buffer(7), _parameter(n, 8), limits(n, n.dtype(1))
    x, y = (_moved(n, index, scale, zero_point, bounds) for index in (1, 4))
    return n.call(torch.where, n.tensor(0), x, y)


def average_windows(
    x: torch.Tensor,
    kernel: list[int],
    strides: list[int],
    pads: list[int],
    same: str,
    ceil: bool,
    include_pad: bool,
) -> torch.Tensor:
    """Mean over each window, its elements added one by one in the order of memory, as onnxruntime does."""
    sizes, ones = x.shape[2:], [1] * len(kernel)
    grown = torch_padding(all_pads(sizes, kernel, strides, ones, pads, same, ceil))
    sums = _added_up(functional.pad(x, grown), kernel, strides)
    if include_pad:
        return sums / math.prod(kernel)
    inside = torch.ones([1, 1, *sizes], dtype=x.dtype, device=x.device)
    return sums / _added_up(functional.pad(inside, grown), kernel, strides)


def _added_up(x: torch.Tensor, kernel: list[int], strides: list[int]) -> torch.Tensor:
    counts = [(size - k) // stride + 1 for size, k, stride in zip(x.shape[2:], kernel, strides, strict=True)]
    total: torch.Tensor | None = None
    for place in itertools.product(*map(range, kernel)):
        part = x
        for axis, (begin, stride, count) in enumerate(zip(place, strides, counts, strict=True)):
            part = part.narrow(axis + 2, begin, (count - 1) * stride + 1)
            part = part[(slice(None),) * (axis + 2) + (slice(None, None, stride),)]
        total = part if total is None else total + part
    return x if total is None else total


def on_grid(values: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor | None) -> torch.Tensor:
    """``values / scale + zero_point``, not rounded yet."""
    return values / scale + as_float(zero_point, values)


def com_microsoft_q_linear_average_pool(n: NodeView) -> Lowered:
    """QLinearAveragePool 1."""
    window, bounds = Window(n), limits(n, n.dtype(0))
    last = n.attr("channels_last", 0)
    x = n.call(torch.movedim, n.tensor(0), -1, 1) if last else n.tensor(0)
    values = n.call(to_values, x, n.buffer(1), _parameter(n, 2))
    options = (window.kernel, window.strides, window.pads, window.same, window.ceil)
    mean = n.call(average_windows, values, *options, bool(n.attr("count_include_pad", 0)))
    y = n.call(round_to_codes, n.call(on_grid, mean, n.buffer(3), _parameter(n, 4)), *bounds)
    return n.call(torch.movedim, y, 1, -1) if last else y


def mean_of_codes(
    x: torch.Tensor,
    x_scale: torch.Tensor,
    x_zero: torch.Tensor | None,
    y_scale: torch.Tensor,
    y_zero: torch.Tensor | None,
    channels_last: bool,
    bounds: tuple[int, int, torch.dtype],
) -> torch.Tensor:
    """Mean over the spatial axes, kept with length 1: the sum of codes is exact, and rounded once."""
    axes = list(range(1, x.dim() - 1) if channels_last else range(2, x.dim()))
    count = math.prod(x.shape[axis] for axis in axes)
    sums = centre(x, x_zero, 0, torch.int32).sum(axes, keepdim=True)
    return requantize(sums, x_scale / (y_scale * float(count)), y_zero, *bounds)


def com_microsoft_q_linear_global_average_pool(n: NodeView) -> Lowered:
    """QLinearGlobalAveragePool 1."""
    bounds, last = limits(n, n.dtype(0)), bool(n.attr("channels_last", 0))
    parameters = [n.buffer(1), _parameter(n, 2), n.buffer(3), _parameter(n, 4)]
    return n.call(mean_of_codes, n.tensor(0), *parameters, last, bounds)


def com_microsoft_nhwc_max_pool(n: NodeView) -> Lowered:
    """NhwcMaxPool 1."""
    window = Window(n)
    options = (window.kernel, window.strides, window.dilations, window.pads, window.same, window.ceil)
    first = n.call(torch.movedim, n.tensor(0), -1, 1)
    return n.call(torch.movedim, n.call(padded_max_pool, first, *options), 1, -1)
