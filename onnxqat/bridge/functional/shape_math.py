"""Arithmetic on the numbers of shapes: Python scalars at import, SymInts under torch.export and torch.compile.

Integers follow ONNX (division truncates); floats are rounded to float32 after every step, as the graph's tensors are.
All functions are named in generated code, so they are module-level and take and return plain numbers.
"""

from __future__ import annotations

import math
from typing import Any

import torch

# torch ships these without annotations.
_sym_float: Any = torch.sym_float
_sym_int: Any = torch.sym_int
_sym_max: Any = torch.sym_max
_sym_min: Any = torch.sym_min

Scalar = Any  # int, float, bool or torch's SymInt, SymFloat, SymBool, which share no base class


def single(value: Scalar) -> Scalar:
    """A float rounded to float32; integers and symbols unchanged.

    Without numpy, so that torch.compile can follow it. Rounding a float64 sum, product, quotient or square root of
    float32 numbers gives what float32 arithmetic gives.
    """
    if not isinstance(value, float) or value == 0.0 or not math.isfinite(value):
        return value
    fraction, exponent = math.frexp(value)
    return math.ldexp(round(fraction * 2**24), exponent - 24)


def add(a: Scalar, b: Scalar) -> Scalar:
    """Sum."""
    return single(a + b)


def subtract(a: Scalar, b: Scalar) -> Scalar:
    """Difference."""
    return single(a - b)


def multiply(a: Scalar, b: Scalar) -> Scalar:
    """Product."""
    return single(a * b)


def divide(a: Scalar, b: Scalar) -> Scalar:
    """Quotient; of integers truncated towards zero."""
    if isinstance(a, (float, torch.SymFloat)) or isinstance(b, (float, torch.SymFloat)):
        if isinstance(b, float) and b == 0.0:
            return math.copysign(math.inf, a) * math.copysign(1.0, b) if a else math.nan
        return single(a / b)
    return -(-a // b) if (a < 0) != (b < 0) else a // b


def modulo(a: Scalar, b: Scalar) -> Scalar:
    """Remainder with the sign of the divisor (ONNX Mod without fmod)."""
    return single(a % b)


def power(a: Scalar, b: Scalar) -> Scalar:
    """Power, in the type of the base."""
    result = a**b
    return single(result) if isinstance(a, (float, torch.SymFloat)) else to_int(result)


def maximum(a: Scalar, b: Scalar) -> Scalar:
    """The larger."""
    return _sym_max(a, b)


def minimum(a: Scalar, b: Scalar) -> Scalar:
    """The smaller."""
    return _sym_min(a, b)


def negate(a: Scalar) -> Scalar:
    """Negative."""
    return -a


def absolute(a: Scalar) -> Scalar:
    """Magnitude."""
    return abs(a)


def sign(a: Scalar) -> Scalar:
    """-1, 0 or 1, in the type of `a`."""
    result = (a > 0) - (a < 0)
    return float(result) if isinstance(a, float) else result


def floor(a: Scalar) -> Scalar:
    """Largest integer not above, still a float."""
    return float(math.floor(a)) if isinstance(a, (int, float)) else _sym_float(math.floor(a))


def ceil(a: Scalar) -> Scalar:
    """Smallest integer not below, still a float."""
    return float(math.ceil(a)) if isinstance(a, (int, float)) else _sym_float(math.ceil(a))


def round_half_even(a: Scalar) -> Scalar:
    """Nearest integer, still a float."""
    return float(round(a)) if isinstance(a, (int, float)) else _sym_float(round(a))


def square_root(a: Scalar) -> Scalar:
    """Square root."""
    return single(math.sqrt(a)) if isinstance(a, (int, float)) else _sym_float(a) ** 0.5


def to_int(a: Scalar) -> Scalar:
    """Truncated to an integer."""
    return int(a) if isinstance(a, (bool, int, float)) else _sym_int(a)


def to_float(a: Scalar) -> Scalar:
    """As a float32 number."""
    return single(float(a)) if isinstance(a, (bool, int, float)) else _sym_float(a)


def to_bool(a: Scalar) -> Scalar:
    """Convert to bool: ``a != 0``."""
    return a != 0


def equal(a: Scalar, b: Scalar) -> Scalar:
    """Equality."""
    return a == b


def greater(a: Scalar, b: Scalar) -> Scalar:
    """Compare: ``a > b``."""
    return a > b


def greater_or_equal(a: Scalar, b: Scalar) -> Scalar:
    """Compare: ``a >= b``."""
    return a >= b


def less(a: Scalar, b: Scalar) -> Scalar:
    """Compare: ``a < b``."""
    return a < b


def less_or_equal(a: Scalar, b: Scalar) -> Scalar:
    """Compare: ``a <= b``."""
    return a <= b


def logical_and(a: Scalar, b: Scalar) -> Scalar:
    """Both."""
    return bool(a) and bool(b)


def logical_or(a: Scalar, b: Scalar) -> Scalar:
    """Either."""
    return bool(a) or bool(b)


def logical_xor(a: Scalar, b: Scalar) -> Scalar:
    """One of the two."""
    return bool(a) != bool(b)


def logical_not(a: Scalar) -> Scalar:
    """Negation."""
    return not bool(a)


def choose(condition: Scalar, a: Scalar, b: Scalar) -> Scalar:
    """`a` where the condition holds, else `b`."""
    return a if condition else b


def to_tensor(numbers: Any, shape: list[int], dtype: torch.dtype, device: torch.device | str) -> torch.Tensor:
    """A tensor of flat `numbers`, SymInts included, reshaped to `shape`."""
    if all(isinstance(n, (int, float, bool)) for n in numbers):
        return torch.tensor(numbers, dtype=dtype, device=device).reshape(shape)
    return torch.stack([torch.full((), n, dtype=dtype, device=device) for n in numbers]).reshape(shape)


def to_list(values: torch.Tensor) -> list[Any]:
    """The numbers of a tensor: the one place where a shape depends on data."""
    found: list[Any] = values.reshape(-1).tolist()
    return found
