"""Operations that numpy and torch spell differently, so that a formula is written once and gives the same bits in both.

``x.round()`` (half to even) and ``x.clip(low, high)`` are methods of both, and so are the operators.
"""

from __future__ import annotations

import sys
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = Any
"""A numpy array or a torch tensor."""


def _is_numpy(x: Array) -> bool:
    return isinstance(x, (np.ndarray, np.generic))


def single(x: Array) -> Array:
    """`x` in float32, rounded half to even; a number, which is one of float32, as it is."""
    if isinstance(x, float):
        return x
    return x.astype(np.float32) if _is_numpy(x) else x.float()


def double(x: Array) -> Array:
    """`x` in float64; a number as it is."""
    if isinstance(x, float):
        return x
    return x.astype(np.float64) if _is_numpy(x) else x.double()


def whole(x: Array) -> Array:
    """`x`, whole numbers in some float type, as int64."""
    return x.astype(np.int64) if _is_numpy(x) else x.long()


def fused(a: Array, b: Array, c: Array) -> Array:
    """``a * b + c`` of float32, rounded once, as one instruction of a processor gives it.

    The product of two float32 is exact in float64, and so is the sum where the exponents are near to each other, as
    those of a code and its offset are.
    """
    return single(double(a) * double(b) + double(c))


def frexp(x: Array) -> tuple[Array, Array]:
    """Mantissa from 0.5 to 1 in float64 and exponent in int64 of `x`, which is positive."""
    library = np if _is_numpy(x) else sys.modules["torch"]
    mantissa, exponent = library.frexp(double(x))
    return mantissa, whole(exponent)


def where(condition: Array, x: Array, y: Array) -> Array:
    """Elements of `x` where `condition` holds, of `y` elsewhere; one of the two may be a number."""
    library = np if _is_numpy(condition) else sys.modules["torch"]
    return library.where(condition, x, y)


def largest(x: Array) -> float:
    """The largest magnitude in `x`; 0 where it is empty."""
    size = x.size if _is_numpy(x) else x.numel()
    return float(abs(x).max()) if size else 0.0
