"""Comparisons, booleans and bitwise operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import torch

from onnxqat.bridge.functional import legacy_broadcast, shape_math, unsigned_types
from onnxqat.bridge.importing.builder import Lowered, NodeView

BOOL = ir.DataType.BOOL


def _compare(n: NodeView, tensor_function: Callable[..., Any], number_function: Callable[..., Any]) -> Lowered:
    if legacy_broadcast.trailing_axes(n):
        return n.call(tensor_function, n.tensor(0), legacy_broadcast.right(n))
    arrays = n.grids()
    if arrays is not None:
        return n.elementwise(number_function, arrays, BOOL)
    return n.call(tensor_function, n.tensor(0), n.operand(1))


def equal(n: NodeView) -> Lowered:
    """Equal 1 to 19; strings are refused."""
    return _compare(n, torch.eq, shape_math.equal)


def greater(n: NodeView) -> Lowered:
    """Greater 1 to 13."""
    return _compare(n, torch.gt, shape_math.greater)


def greater_or_equal(n: NodeView) -> Lowered:
    """GreaterOrEqual 12 to 16."""
    return _compare(n, torch.ge, shape_math.greater_or_equal)


def less(n: NodeView) -> Lowered:
    """Less 1 to 13."""
    return _compare(n, torch.lt, shape_math.less)


def less_or_equal(n: NodeView) -> Lowered:
    """LessOrEqual 12 to 16."""
    return _compare(n, torch.le, shape_math.less_or_equal)


def and_(n: NodeView) -> Lowered:
    """And 1 and 7."""
    return _compare(n, torch.logical_and, shape_math.logical_and)


def or_(n: NodeView) -> Lowered:
    """Or 1 and 7."""
    return _compare(n, torch.logical_or, shape_math.logical_or)


def xor(n: NodeView) -> Lowered:
    """Xor 1 and 7."""
    return _compare(n, torch.logical_xor, shape_math.logical_xor)


def not_(n: NodeView) -> Lowered:
    """Not 1."""
    arrays = n.grids()
    if arrays is not None:
        return n.elementwise(shape_math.logical_not, arrays, BOOL)
    return n.call(torch.logical_not, n.tensor(0))


def is_nan(n: NodeView) -> Lowered:
    """IsNaN 9 to 20."""
    return n.call(torch.isnan, n.tensor(0))


def is_inf(n: NodeView) -> Lowered:
    """IsInf 10 and 20, of one sign or both."""
    positive, negative = n.attr("detect_positive", 1), n.attr("detect_negative", 1)
    if positive and negative:
        return n.call(torch.isinf, n.tensor(0))
    if positive:
        return n.call(torch.isposinf, n.tensor(0))
    if negative:
        return n.call(torch.isneginf, n.tensor(0))
    return n.call(torch.zeros_like, n.tensor(0), dtype=torch.bool)


def bitwise_and(n: NodeView) -> Lowered:
    """BitwiseAnd 18."""
    return n.call(torch.bitwise_and, n.tensor(0), n.tensor(1))


def bitwise_or(n: NodeView) -> Lowered:
    """BitwiseOr 18."""
    return n.call(torch.bitwise_or, n.tensor(0), n.tensor(1))


def bitwise_xor(n: NodeView) -> Lowered:
    """BitwiseXor 18."""
    return n.call(torch.bitwise_xor, n.tensor(0), n.tensor(1))


def bitwise_not(n: NodeView) -> Lowered:
    """BitwiseNot 18."""
    return n.call(torch.bitwise_not, n.tensor(0))


def shifted(x: torch.Tensor, by: torch.Tensor, left: bool) -> torch.Tensor:
    """`x` shifted; by a negative number, or by all its bits and more, only the sign remains.

    Args:
        x: integers of any type.
        by: of the same type.
        left: direction; to the right the sign is extended.
    """
    width = x.element_size() * 8
    wide = x.view(torch.int64) if x.dtype is torch.uint64 else x.to(torch.int64)
    count = unsigned_types.to_index(by)
    outside = (count < 0) | (count >= width)
    count = torch.where(outside, 0, count)
    if left:
        result, rest = wide << count, torch.zeros_like(wide)
    elif x.dtype is torch.uint64:
        result, rest = unsigned_types.shift_right(wide, count), torch.zeros_like(wide)
    else:
        result, rest = wide >> count, wide >> 63
    return torch.where(outside, rest, result).to(x.dtype)


def bit_shift(n: NodeView) -> Lowered:
    """BitShift 11 to 28."""
    direction = str(n.attr("direction"))
    if direction not in ("LEFT", "RIGHT"):
        raise n.refuse(f"direction {direction!r}")
    return n.call(shifted, n.tensor(0), n.tensor(1), direction == "LEFT")
