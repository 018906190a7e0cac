"""Operations that numpy and torch spell differently, so that a formula is written once and gives the same bits in both.

``x.round()`` (half to even) and ``x.clip(low, high)`` are methods of both, and so are the operators.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = Any
"""A numpy array or a torch tensor."""


def _is_numpy(x: Array) -> bool:
    return isinstance(x, (np.ndarray, np.generic))


def single(x: Array) -> Array:
    """`x` in float32, rounded half to even; a number, which is one of float32, as it is."""
    if type(x) is float:  # which np.float64 is not, though a subclass
        return x
    return x.astype(np.float32) if _is_numpy(x) else x.float()


def double(x: Array) -> Array:
    """`x` in float64; a number as it is."""
    if isinstance(x, (int, float)):
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


def whole_number(x: Array) -> Array:
    """`x`, whole numbers, as int64; one number as an int."""
    return int(x) if isinstance(x, (int, float)) else whole(x)


def frexp(x: Array) -> tuple[Array, Array]:
    """Mantissa from 0.5 to 1 in float64 and exponent in int64 of `x`, which is positive."""
    library = np if _is_numpy(x) else sys.modules["torch"]
    mantissa, exponent = library.frexp(double(x))
    return mantissa, whole(exponent)


def exponent_of(x: Array) -> Array:
    """The number of bits of `x`, positive whole numbers in int64."""
    return frexp(x)[1]


def where(condition: Array, x: Array, y: Array) -> Array:
    """Elements of `x` where `condition` holds, of `y` elsewhere; one of the two may be a number."""
    library = np if _is_numpy(condition) else sys.modules["torch"]
    return library.where(condition, x, y)


def largest(x: Array) -> float:
    """The largest magnitude in `x`; 0 where it is empty."""
    size = x.size if _is_numpy(x) else x.numel()
    return float(abs(x).max()) if size else 0.0


def counts_above(x: Array, limit: float) -> int:
    """Number of elements of `x` that are larger than `limit` or smaller than ``-limit - 1``."""
    return int(((x > limit) | (x < -limit - 1)).sum())


def counted(low: int, high: int, like: Array) -> Array:
    """``low, low + 1, ... high`` in float32, where `like` is."""
    if _is_numpy(like):
        return np.arange(low, high + 1, dtype=np.float32)
    torch = sys.modules["torch"]
    return torch.arange(low, high + 1, dtype=torch.float32, device=like.device)


def scalar(value: Any, like: Array) -> Array:
    """`value`, a number or torch's symbol of one, in float64, where `like` is."""
    if _is_numpy(like):
        return np.float64(value)
    return like.new_full((), value, dtype=sys.modules["torch"].float64)


def exponential(x: Array) -> Array:
    """``exp(x)`` in the type of `x`."""
    return np.exp(x) if _is_numpy(x) else x.exp()


def logarithm(x: Array) -> Array:
    """``log(x)`` in the type of `x`."""
    return np.log(x) if _is_numpy(x) else x.log()


def floor(x: Array) -> Array:
    """The largest whole number that is not above `x`."""
    return np.floor(x) if _is_numpy(x) else x.floor()


def largest_of_rows(x: Array) -> Array:
    """The largest element along the last axis, which is kept with length 1."""
    return x.max(-1, keepdims=True) if _is_numpy(x) else x.amax(-1, keepdim=True)


def looked_up(table: Array, places: Array) -> Array:
    """Elements of `table` at `places`, whole numbers in float32; NaN and what lies outside count as the nearest end.

    NaN has the first place, as its code is the smallest one in onnxruntime.
    """
    if _is_numpy(table):
        limited = np.nan_to_num(places, nan=0.0).clip(0, len(table) - 1)
        return table.take(limited.astype(np.int32))
    torch = sys.modules["torch"]
    limited = places.nan_to_num(nan=0.0).clip(0, len(table) - 1)
    return table.index_select(0, limited.to(torch.int32).reshape(-1)).view(places.shape)


def added_in_order(x: Array) -> Array:
    """The sum along the last axis, which is kept with length 1: float32, rounded behind every element, from the first on.

    Of an axis whose length torch does not know while it traces, float64 adds up, which rounds once.
    """
    if _is_numpy(x):
        return np.add.accumulate(x, axis=-1, dtype=np.float32)[..., -1:]
    if not isinstance(x.shape[-1], int):
        return single(double(x).sum(-1, keepdim=True))
    first, *others = x.movedim(-1, 0).contiguous().unbind(0)
    total = first if not others else first + others[0]
    for other in others[1:]:
        total = total + other
    return total.unsqueeze(-1)


def zeros_around(x: Array, pads: Sequence[tuple[int, int]]) -> Array:
    """`x` with zeros in front of and behind its last axes, as many of each as `pads` says from the first of them on."""
    if _is_numpy(x):
        return np.pad(x, [(0, 0)] * (x.ndim - len(pads)) + list(pads))
    flat = [number for pair in reversed(pads) for number in pair]
    return sys.modules["torch"].nn.functional.pad(x, flat)


def ones(shape: Sequence[int], like: Array) -> Array:
    """Ones in float32, where `like` is."""
    if _is_numpy(like):
        return np.ones(shape, np.float32)
    return like.new_ones(shape, dtype=sys.modules["torch"].float32)


def product(a: Array, b: Array, into: Array | None = None) -> Array:
    """``a * b``, written to `into` where there is one; no gradient then."""
    if into is None:
        return a * b
    return np.multiply(a, b, out=into) if _is_numpy(a) else sys.modules["torch"].mul(a, b, out=into)
