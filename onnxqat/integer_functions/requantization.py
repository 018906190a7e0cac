"""A product with a real factor in integers: multiplier and shift, as fixed-point kernels have them."""

from __future__ import annotations

import math

from onnxqat.integer_functions.operations import Integers, Operations

LONGEST = 62
"""Largest shift: int64 has no more bits for a positive number."""


def multiplier(factor: float, bits: int, longest: int = LONGEST) -> tuple[int, int]:
    """Whole number of at most `bits` bits, and a shift from 1 to `longest`, with ``number / 2**shift`` next to `factor`.

    A factor too large for these ends is the largest that there is, and one too small may be 0.
    """
    if factor <= 0:
        return 0, 1
    _, exponent = math.frexp(factor)
    shift = min(max(bits - exponent, 1), longest)
    number = round(math.ldexp(factor, shift))
    if number >= 1 << bits and shift > 1:  # a mantissa that rounds up to the next power of two
        shift -= 1
        number = round(math.ldexp(factor, shift))
    return min(number, (1 << bits) - 1), shift


def factor_bounds(bits: int) -> dict[str, tuple[int, int]]:
    """Ends of the constants of :func:`requantized`."""
    return {"y_multiplier": (0, (1 << bits) - 1), "y_shift": (1, LONGEST)}


def factor_constants(factor: float, bits: int) -> dict[str, int]:
    """Constants of :func:`requantized` for a factor."""
    number, shift = multiplier(factor, bits)
    return {"y_multiplier": number, "y_shift": shift}


def requantized(
    do: Operations, x: Integers, number: Integers, shift: Integers, zero_point: Integers, ends: tuple[int, int]
) -> Integers:
    """Codes ``x * number / 2**shift + zero_point``, rounded to nearest with ties upwards and saturated."""
    scaled = do.stage("scaled", do.rounded(x * number, shift))
    return do.limited(scaled + zero_point, *ends)
