"""Functions whose slope is infinite or no number at the end of their domain or beyond it: there it is 0.

So training goes on: an infinite slope becomes NaN as soon as it meets a factor of 0, as in the norm of a zero vector,
and one NaN is enough to spoil every weight. Values are those of torch, bit for bit: NaN beyond the domain. At a pole,
where the value is infinite, the slope stays infinite.
"""

from __future__ import annotations

import torch


def flat_outside(x: torch.Tensor, inside: torch.Tensor) -> torch.Tensor:
    """`x`, constant as far as gradients go where it is not `inside`."""
    return torch.where(inside, x, x.detach())


def square_root(x: torch.Tensor) -> torch.Tensor:
    """Square root; slope 0 at 0, as torch has it for norms, and below."""
    return torch.sqrt(flat_outside(x, x > 0))


def arc_sine(x: torch.Tensor) -> torch.Tensor:
    """Inverse sine; slope 0 at -1, at 1 and beyond."""
    return torch.asin(flat_outside(x, x.abs() < 1))


def arc_cosine(x: torch.Tensor) -> torch.Tensor:
    """Inverse cosine; slope 0 at -1, at 1 and beyond."""
    return torch.acos(flat_outside(x, x.abs() < 1))


def area_hyperbolic_cosine(x: torch.Tensor) -> torch.Tensor:
    """Inverse hyperbolic cosine; slope 0 at 1 and below."""
    return torch.acosh(flat_outside(x, x > 1))


def area_hyperbolic_tangent(x: torch.Tensor) -> torch.Tensor:
    """Inverse hyperbolic tangent; slope 0 beyond -1 and 1, which are poles."""
    return torch.atanh(flat_outside(x, x.abs() <= 1))


def power(base: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    """Power of floats; with a fractional exponent slope 0 where the base is not positive.

    Nor does the exponent get a gradient there: between whole exponents a negative base has no power.
    """
    positive = base > 0
    whole = torch.round(exponent) == exponent
    return torch.pow(flat_outside(base, positive | whole), flat_outside(exponent, positive))


def fractional_power(base: torch.Tensor, exponent: float) -> torch.Tensor:
    """Power with a known exponent that is no whole number; slope 0 where the base is not positive."""
    return torch.pow(flat_outside(base, base > 0), exponent)


def truncated_remainder(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """C's fmod; the slope along the divisor, minus the truncated quotient, is 0 where the quotient is not finite."""
    return torch.fmod(a, _divisor(a, b))


def floored_remainder(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Remainder with the sign of the divisor, and slopes like those of :func:`truncated_remainder`."""
    return torch.remainder(a, _divisor(a, b))


def _divisor(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return flat_outside(b, torch.isfinite(a.detach() / b.detach())) if b.is_floating_point() else b
