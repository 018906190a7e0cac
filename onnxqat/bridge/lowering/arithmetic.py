"""Elementwise arithmetic (ONNX versions 1 to 28), cumulative sums and products.

Shape arithmetic stays on Python numbers; see :mod:`onnxqat.bridge.functional.shape_math`.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import torch

from onnxqat.bridge.functional import legacy_broadcast, safe_gradients, shape_math, unsigned_types
from onnxqat.bridge.importing.builder import Lowered, NodeView


def truncated_divide(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Quotient; of integers truncated towards zero."""
    if torch.is_tensor(a) and a.is_floating_point():
        return a / b
    return torch.div(a, b, rounding_mode="trunc")


def power_of_base_type(base: torch.Tensor, exponent: torch.Tensor | float) -> torch.Tensor:
    """Power in the type of the base; an integer base with a float exponent is computed in float64."""
    if not torch.is_tensor(exponent):
        return torch.pow(base, exponent).to(base.dtype)
    if base.is_floating_point():
        powers = safe_gradients.power if exponent.is_floating_point() else torch.pow
        return powers(base, exponent).to(base.dtype)
    if exponent.is_floating_point():
        return torch.pow(base.to(torch.float64), exponent.to(torch.float64)).to(base.dtype)
    return torch.pow(base, exponent).to(base.dtype)


def shifted_cumsum(x: torch.Tensor, axis: int, exclusive: bool, reverse: bool) -> torch.Tensor:
    """Cumulative sum, optionally without the current element or from the end."""
    if reverse:
        x = x.flip(axis)
    total = torch.cumsum(x, axis, dtype=x.dtype)
    if exclusive:
        total = total - x
    return total.flip(axis) if reverse else total


def shifted_cumprod(x: torch.Tensor, axis: int, exclusive: bool, reverse: bool) -> torch.Tensor:
    """Cumulative product, optionally without the current element or from the end."""
    if reverse:
        x = x.flip(axis)
    if exclusive:
        before = x.narrow(axis, 0, x.shape[axis] - 1)
        x = torch.cat([torch.ones_like(x.narrow(axis, 0, 1)), before], axis)
    product = torch.cumprod(x, axis, dtype=x.dtype)
    return product.flip(axis) if reverse else product


def _unary(n: NodeView, tensor_function: Callable[..., Any], number_function: Callable[..., Any] | None) -> Lowered:
    if number_function is not None:
        arrays = n.grids()
        if arrays is not None:
            return n.elementwise(number_function, arrays)
    return n.call(tensor_function, n.tensor(0))


def _binary(n: NodeView, tensor_function: Callable[..., Any], number_function: Callable[..., Any]) -> Lowered:
    if legacy_broadcast.trailing_axes(n):
        return n.call(tensor_function, n.tensor(0), legacy_broadcast.right(n))
    arrays = n.grids()
    if arrays is not None:
        return n.elementwise(number_function, arrays)
    return n.call(tensor_function, n.operand(0), n.operand(1))


def _variadic(n: NodeView, tensor_function: Callable[..., Any], number_function: Callable[..., Any]) -> Lowered:
    arrays = n.grids()
    if arrays is not None:
        return n.numbers(functools.reduce(lambda a, b: n.elementwise(number_function, [a, b]).array, arrays))
    tensors = [n.tensor(i) for i in range(n.count)]
    return functools.reduce(lambda a, b: n.call(tensor_function, a, b), tensors)


def add(n: NodeView) -> Lowered:
    """Add 1 to 14."""
    return _binary(n, operator.add, shape_math.add)


def sub(n: NodeView) -> Lowered:
    """Sub 1 to 14."""
    return _binary(n, operator.sub, shape_math.subtract)


def mul(n: NodeView) -> Lowered:
    """Mul 1 to 14."""
    return _binary(n, operator.mul, shape_math.multiply)


def div(n: NodeView) -> Lowered:
    """Div 1 to 14; integers truncate."""
    if n.dtype(0) is ir.DataType.UINT64:
        return n.call(unsigned_types.divide, n.tensor(0), legacy_broadcast.right(n))
    known_float = n.dtype(0) is not None and n.is_float(0)
    return _binary(n, operator.truediv if known_float else truncated_divide, shape_math.divide)


def mod(n: NodeView) -> Lowered:
    """Mod 10 to 28: the sign of the divisor, or C's fmod."""
    if n.dtype(0) is ir.DataType.UINT64:
        return n.call(unsigned_types.remainder, n.tensor(0), n.tensor(1))
    if n.attr("fmod", 0):
        return n.call(safe_gradients.truncated_remainder, n.tensor(0), n.tensor(1))
    known_float = n.dtype(0) is not None and n.is_float(0)
    return _binary(n, safe_gradients.floored_remainder if known_float else torch.remainder, shape_math.modulo)


def pow_(n: NodeView) -> Lowered:
    """Pow 1 to 15; the result has the type of the base. A constant scalar exponent is baked in."""
    arrays = n.grids()
    if arrays is not None:
        return n.elementwise(shape_math.power, arrays)
    if legacy_broadcast.trailing_axes(n):
        return n.call(power_of_base_type, n.tensor(0), legacy_broadcast.right(n))
    exponent = n.static(1)
    if exponent is not None and exponent.shape == () and n.dtype(0) is not None and n.is_float(0):
        value = float(exponent)
        if not value.is_integer():
            return n.call(safe_gradients.fractional_power, n.tensor(0), value)
        return n.call(torch.pow, n.tensor(0), int(value))
    return n.call(power_of_base_type, n.tensor(0), n.tensor(1))


def max_(n: NodeView) -> Lowered:
    """Max 1 to 13."""
    return _variadic(n, torch.maximum, shape_math.maximum)


def min_(n: NodeView) -> Lowered:
    """Min 1 to 13."""
    return _variadic(n, torch.minimum, shape_math.minimum)


def sum_(n: NodeView) -> Lowered:
    """Sum 1 to 13."""
    return _variadic(n, operator.add, shape_math.add)


def mean(n: NodeView) -> Lowered:
    """Mean 1 to 13."""
    tensors = [n.tensor(i) for i in range(n.count)]
    total = functools.reduce(lambda a, b: n.call(operator.add, a, b), tensors)
    return n.call(operator.truediv, total, n.count)


def abs_(n: NodeView) -> Lowered:
    """Abs 1 to 13."""
    if n.dtype(0) is ir.DataType.UINT64:
        return n.value(0)
    return _unary(n, torch.abs, shape_math.absolute)


def neg(n: NodeView) -> Lowered:
    """Neg 1 to 13."""
    return _unary(n, torch.neg, shape_math.negate)


def sign(n: NodeView) -> Lowered:
    """Sign 9 to 13; NaN stays NaN."""
    if n.dtype(0) is ir.DataType.UINT64:
        return n.call(torch.ne, n.tensor(0), 0)
    return _unary(n, torch.sign, shape_math.sign)


def floor(n: NodeView) -> Lowered:
    """Floor 1 to 13."""
    return _unary(n, torch.floor, shape_math.floor)


def ceil(n: NodeView) -> Lowered:
    """Ceil 1 to 13."""
    return _unary(n, torch.ceil, shape_math.ceil)


def round_(n: NodeView) -> Lowered:
    """Round 11 to 22, halves to even."""
    return _unary(n, torch.round, shape_math.round_half_even)


def sqrt(n: NodeView) -> Lowered:
    """Sqrt 1 to 13."""
    return _unary(n, safe_gradients.square_root, shape_math.square_root)


def exp(n: NodeView) -> Lowered:
    """Exp 1 to 13."""
    return _unary(n, torch.exp, None)


def log(n: NodeView) -> Lowered:
    """Log 1 to 13."""
    return _unary(n, torch.log, None)


def reciprocal(n: NodeView) -> Lowered:
    """Reciprocal 1 to 13."""
    return _unary(n, torch.reciprocal, None)


def erf(n: NodeView) -> Lowered:
    """Erf 9 to 13."""
    return _unary(n, torch.erf, None)


def sin(n: NodeView) -> Lowered:
    """Sin 7 to 22."""
    return _unary(n, torch.sin, None)


def cos(n: NodeView) -> Lowered:
    """Cos 7 to 22."""
    return _unary(n, torch.cos, None)


def tan(n: NodeView) -> Lowered:
    """Tan 7 to 22."""
    return _unary(n, torch.tan, None)


def asin(n: NodeView) -> Lowered:
    """Asin 7 to 22."""
    return _unary(n, safe_gradients.arc_sine, None)


def acos(n: NodeView) -> Lowered:
    """Acos 7 to 22."""
    return _unary(n, safe_gradients.arc_cosine, None)


def atan(n: NodeView) -> Lowered:
    """Atan 7 to 22."""
    return _unary(n, torch.atan, None)


def sinh(n: NodeView) -> Lowered:
    """Sinh 9 to 22."""
    return _unary(n, torch.sinh, None)


def cosh(n: NodeView) -> Lowered:
    """Cosh 9 to 22."""
    return _unary(n, torch.cosh, None)


def asinh(n: NodeView) -> Lowered:
    """Asinh 9 to 22."""
    return _unary(n, torch.asinh, None)


def acosh(n: NodeView) -> Lowered:
    """Acosh 9 to 22."""
    return _unary(n, safe_gradients.area_hyperbolic_cosine, None)


def atanh(n: NodeView) -> Lowered:
    """Atanh 9 to 22."""
    return _unary(n, safe_gradients.area_hyperbolic_tangent, None)


def cum_sum(n: NodeView) -> Lowered:
    """CumSum 11 to 14; the axis may be computed at run time."""
    exclusive, reverse = bool(n.attr("exclusive", 0)), bool(n.attr("reverse", 0))
    axis = n.scalar(1)
    if not exclusive and not reverse and n.is_float(0):
        return n.call(torch.cumsum, n.tensor(0), axis)
    return n.call(shifted_cumsum, n.tensor(0), axis, exclusive, reverse)


def cum_prod(n: NodeView) -> Lowered:
    """CumProd 26; the axis may be computed at run time."""
    exclusive, reverse = bool(n.attr("exclusive", 0)), bool(n.attr("reverse", 0))
    return n.call(shifted_cumprod, n.tensor(0), n.scalar(1), exclusive, reverse)
