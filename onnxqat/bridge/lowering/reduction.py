"""Reductions over axes: attributes before version 13 (ReduceSum) or 18, an optional input since."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from onnxqat.bridge.functional import safe_gradients, shape_math, unsigned_types
from onnxqat.bridge.importing.builder import Lowered, NodeView


def all_axes(x: torch.Tensor, axes: Any) -> list[int]:
    """`axes`, or all of them where there are none."""
    return list(axes) if axes else list(range(x.dim()))


def reduced_mean(x: torch.Tensor, axes: Any, keepdims: bool) -> torch.Tensor:
    """Mean; of integers truncated, with their sum in 64 bits."""
    if x.is_floating_point():
        return x.mean(all_axes(x, axes), keepdim=keepdims)
    total = unsigned_types.to_bits(x).to(torch.int64).sum(all_axes(x, axes), keepdim=keepdims)
    count = torch.full_like(total, math.prod(x.shape[a] for a in all_axes(x, axes)))
    if x.dtype is torch.uint64:
        return unsigned_types.divide(total.view(torch.uint64), count.view(torch.uint64))
    return torch.div(total, count, rounding_mode="trunc").to(x.dtype)


def reduced_sum(x: torch.Tensor, axes: Any, keepdims: bool) -> torch.Tensor:
    """Sum in the type of `x`."""
    return x.sum(all_axes(x, axes), keepdim=keepdims, dtype=x.dtype)


def reduced_product(x: torch.Tensor, axes: Any, keepdims: bool) -> torch.Tensor:
    """Product."""
    for axis in sorted((a % x.dim() for a in all_axes(x, axes)), reverse=True):
        x = x.prod(axis, keepdim=keepdims, dtype=x.dtype)
    return x


def reduced_maximum(x: torch.Tensor, axes: Any, keepdims: bool) -> torch.Tensor:
    """Maximum; of nothing the lowest value."""
    if x.numel() == 0:
        return _of_nothing(x, axes, keepdims, lowest=True)
    return x.amax(all_axes(x, axes), keepdim=keepdims)


def reduced_minimum(x: torch.Tensor, axes: Any, keepdims: bool) -> torch.Tensor:
    """Minimum; of nothing the highest value."""
    if x.numel() == 0:
        return _of_nothing(x, axes, keepdims, lowest=False)
    return x.amin(all_axes(x, axes), keepdim=keepdims)


def _of_nothing(x: torch.Tensor, axes: Any, keepdims: bool, *, lowest: bool) -> torch.Tensor:
    shape = x.to(torch.float32).sum(all_axes(x, axes), keepdim=keepdims).shape
    if x.dtype is torch.bool:
        return torch.full(shape, not lowest, dtype=torch.bool, device=x.device)
    if x.is_floating_point():
        return torch.full(shape, float("-inf") if lowest else float("inf"), dtype=x.dtype, device=x.device)
    info = torch.iinfo(x.dtype)
    return torch.full(shape, info.min if lowest else info.max, dtype=x.dtype, device=x.device)


def reduced_l1(x: torch.Tensor, axes: Any, keepdims: bool) -> torch.Tensor:
    """Sum of magnitudes."""
    if x.dtype is torch.uint64:
        return reduced_sum(x.view(torch.int64), axes, keepdims).view(torch.uint64)
    return reduced_sum(x.abs(), axes, keepdims)


def reduced_l2(x: torch.Tensor, axes: Any, keepdims: bool) -> torch.Tensor:
    """Root of the sum of squares."""
    wide = x if x.is_floating_point() else x.to(torch.float64)
    return safe_gradients.square_root(wide.square().sum(all_axes(x, axes), keepdim=keepdims)).to(x.dtype)


def reduced_sum_of_squares(x: torch.Tensor, axes: Any, keepdims: bool) -> torch.Tensor:
    """Sum of squares."""
    return reduced_sum(x * x, axes, keepdims)


def reduced_log_sum(x: torch.Tensor, axes: Any, keepdims: bool) -> torch.Tensor:
    """Logarithm of the sum."""
    if x.is_floating_point():
        return reduced_sum(x, axes, keepdims).log()
    return x.to(torch.float64).sum(all_axes(x, axes), keepdim=keepdims).log().to(x.dtype)


def reduced_log_sum_exp(x: torch.Tensor, axes: Any, keepdims: bool) -> torch.Tensor:
    """Logarithm of the sum of exponentials."""
    wide = x if x.is_floating_point() else x.to(torch.float64)
    return torch.logsumexp(wide, all_axes(x, axes), keepdim=keepdims).to(x.dtype)


def last_extreme(x: torch.Tensor, axis: int, keepdims: bool, largest: bool) -> torch.Tensor:
    """Index of the last maximum or minimum."""
    flipped = x.flip(axis)
    found = flipped.argmax(axis, keepdim=keepdims) if largest else flipped.argmin(axis, keepdim=keepdims)
    return x.shape[axis] - 1 - found


def _reduce(n: NodeView, function: Callable[..., Any], number: Callable[..., Any] | None = None) -> Lowered:
    """Lower a reduction; axes come from an attribute or, in later opsets, an input. Known shapes stay numbers."""
    keepdims = int(n.attr("keepdims", 1)) == 1  # onnxruntime takes no other number for yes
    by_input = n.opset >= (13 if n.node.op_type == "ReduceSum" else 18)
    axes: Any = n.attr("axes")
    noop = bool(n.attr("noop_with_empty_axes", 0))
    if by_input and n.has(1):
        given = n.dims(1)
        if noop and (given is None or given[0] is None):
            raise n.refuse("noop_with_empty_axes with a number of axes that is unknown")
        axes = n.ints(1) if given is None or given[0] != 0 else None
    if not axes and noop:
        if function in (reduced_mean, reduced_sum, reduced_product, reduced_maximum, reduced_minimum):
            return n.value(0)
        # The element-wise part remains: squares, magnitudes, ... of single elements.
        return n.call(function, n.call(torch.unsqueeze, n.tensor(0), -1), [-1], False)
    axes = axes or None
    arrays = n.grids([0])
    if arrays is not None and number is not None and (axes is None or isinstance(axes, list)) and arrays[0].ndim <= 1:
        total = functools.reduce(lambda a, b: n.builder.number(number, a, b), arrays[0].flat)
        return n.numbers(np.full([1] * (arrays[0].ndim * keepdims), total, dtype=object))
    if function is reduced_mean and isinstance(axes, list) and n.dtype(0) is not None and n.is_float(0):
        return n.call(torch.mean, n.tensor(0), axes, keepdims)
    return n.call(function, n.tensor(0), axes, keepdims)


def reduce_max(n: NodeView) -> Lowered:
    """ReduceMax 1 to 20."""
    return _reduce(n, reduced_maximum, shape_math.maximum)


def reduce_min(n: NodeView) -> Lowered:
    """ReduceMin 1 to 20."""
    return _reduce(n, reduced_minimum, shape_math.minimum)


def reduce_mean(n: NodeView) -> Lowered:
    """ReduceMean 1 to 18."""
    return _reduce(n, reduced_mean)


def reduce_sum(n: NodeView) -> Lowered:
    """ReduceSum 1 to 13."""
    return _reduce(n, reduced_sum, shape_math.add)


def reduce_prod(n: NodeView) -> Lowered:
    """ReduceProd 1 to 18."""
    return _reduce(n, reduced_product, shape_math.multiply)


def reduce_l1(n: NodeView) -> Lowered:
    """ReduceL1 1 to 18."""
    return _reduce(n, reduced_l1)


def reduce_l2(n: NodeView) -> Lowered:
    """ReduceL2 1 to 18."""
    return _reduce(n, reduced_l2)


def reduce_log_sum(n: NodeView) -> Lowered:
    """ReduceLogSum 1 to 28."""
    return _reduce(n, reduced_log_sum)


def reduce_log_sum_exp(n: NodeView) -> Lowered:
    """ReduceLogSumExp 1 to 28."""
    return _reduce(n, reduced_log_sum_exp)


def reduce_sum_square(n: NodeView) -> Lowered:
    """ReduceSumSquare 1 to 18."""
    return _reduce(n, reduced_sum_of_squares)


def arg_max(n: NodeView) -> Lowered:
    """ArgMax 1 to 13, first or last index."""
    return _arg(n, largest=True)


def arg_min(n: NodeView) -> Lowered:
    """ArgMin 1 to 13, first or last index."""
    return _arg(n, largest=False)


def _arg(n: NodeView, *, largest: bool) -> Lowered:
    axis, keepdims = n.axis(0), bool(n.attr("keepdims", 1))
    if n.attr("select_last_index", 0):
        return n.call(last_extreme, n.tensor(0), axis, keepdims, largest)
    return n.call(torch.argmax if largest else torch.argmin, n.tensor(0), axis, keepdims)
