"""Functions that are finite but infinitely steep where their domain ends: the slope there is 0, so training goes on.

An infinite slope becomes NaN as soon as it meets a factor of 0, as in the norm of a zero vector. Values are those of
torch, bit for bit; outside the domain both value and slope are NaN.
"""

from __future__ import annotations

from collections.abc import Callable

import torch


def square_root(x: torch.Tensor) -> torch.Tensor:
    """Square root; slope 0 at 0, as torch has it for norms."""
    end = x == 0
    return torch.where(end, x.detach(), torch.sqrt(torch.where(end, torch.ones_like(x), x)))


def _flat(
    function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, end: torch.Tensor, inside: float
) -> torch.Tensor:
    return torch.where(end, function(x.detach()), function(torch.where(end, torch.full_like(x, inside), x)))


def arc_sine(x: torch.Tensor) -> torch.Tensor:
    """Inverse sine; slope 0 at -1 and 1."""
    return _flat(torch.asin, x, x.abs() == 1, 0.0)


def arc_cosine(x: torch.Tensor) -> torch.Tensor:
    """Inverse cosine; slope 0 at -1 and 1."""
    return _flat(torch.acos, x, x.abs() == 1, 0.0)


def area_hyperbolic_cosine(x: torch.Tensor) -> torch.Tensor:
    """Inverse hyperbolic cosine; slope 0 at 1."""
    return _flat(torch.acosh, x, x == 1, 2.0)
