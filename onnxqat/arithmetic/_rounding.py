"""Shifts to the right of whole numbers, with the roundings that chips have."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from onnxqat.arithmetic._arrays import Array, where

Rounding: TypeAlias = Literal["half-even", "half-up", "half-away", "truncate"]
"""``half-up``: ties to positive infinity; ``truncate``: to negative infinity, what a shift alone does."""

ROUNDINGS: tuple[str, ...] = get_args(Rounding)


def shift_right(x: Array, by: Array, rounding: Rounding) -> Array:
    """``x / 2**by``, int64, rounded to whole numbers.

    Args:
        x: int64.
        by: int64, 0 to 62, of a shape that broadcasts with `x`.
        rounding: what happens to the bits that are shifted out.
    """
    quotient = x >> by
    if rounding == "truncate":
        return quotient
    rest, half = x - (quotient << by), (by * 0 + 1 << by) >> 1  # 0 for a shift by 0, where nothing is left over
    if rounding == "half-up":
        up = rest >= half
    elif rounding == "half-away":
        up = (rest > half) | ((rest == half) & (x >= 0))
    else:
        up = (rest > half) | ((rest == half) & (quotient % 2 == 1))
    return where(up & (by > 0), quotient + 1, quotient)
