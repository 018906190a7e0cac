"""Exponentials and reciprocals of fixed-point numbers of 32 bits, as gemmlowp computes them for TFLite's kernels.

Source: gemmlowp, ``fixedpoint/fixedpoint.h``. A number of *n* integer bits is an int64 array of ``value * 2**(31 - n)``.
"""

from __future__ import annotations

import math

from onnxqat.arithmetic._arrays import Array, where
from onnxqat.arithmetic._rounding import shift_right

ONE = 2**31 - 1
"""The largest number below 1 without integer bits, which stands for 1."""
_LOWEST = -(2**31)


def doubled_high(a: Array, b: Array | int) -> Array:
    """The product of two numbers, whose integer bits add up (``SaturatingRoundingDoublingHighMul``)."""
    return shift_right(a * b, a * 0 + 31, "half-up").clip(_LOWEST, ONE)


def divided(x: Array, bits: int) -> Array:
    """``x / 2**bits``, ties away from zero (``RoundingDivideByPOT``)."""
    return shift_right(x, x * 0 + bits, "half-away")


def exponential(x: Array, integer_bits: int) -> Array:
    """``exp(x)`` of numbers that are not above 0, without integer bits.

    What is left over a multiple of a quarter goes into a polynomial around -1/8, and each bit above that is a factor.
    """
    fraction = 31 - integer_bits
    quarter = 1 << (fraction - 2)
    rest = (x & (quarter - 1)) - quarter
    result = _near_an_eighth((rest << integer_bits).clip(_LOWEST, ONE))
    remainder = rest - x
    for exponent in range(-2, integer_bits):
        factor = round(math.exp(-(2.0**exponent)) * 2**31)
        result = where((remainder & (1 << (fraction + exponent))) != 0, doubled_high(result, factor), result)
    return where(x == 0, x * 0 + ONE, result)


def _near_an_eighth(x: Array) -> Array:
    """``exp(x)`` between -1/4 and 0 by the first five terms of the series around -1/8."""
    at_eighth, third = round(math.exp(-0.125) * 2**31), round(2**31 / 3)
    x = x + (1 << 28)
    square = doubled_high(x, x)
    cube, fourth = doubled_high(square, x), doubled_high(square, square)
    later = divided(doubled_high(divided(fourth, 2) + cube, third) + square, 1)
    return at_eighth + doubled_high(x + later, at_eighth)


def reciprocal_of_one_plus(x: Array) -> Array:
    """``1 / (1 + x)`` of numbers from 0 to 1 without integer bits, by three steps of Newton's method."""
    half = (x + ONE + 1) // 2
    found = round(48 / 17 * 2**29) + doubled_high(half, -round(32 / 17 * 2**29))
    for _ in range(3):
        missing = (1 << 29) - doubled_high(half, found)
        found = found + (doubled_high(found, missing) << 2).clip(_LOWEST, ONE)
    return (found << 1).clip(_LOWEST, ONE)
