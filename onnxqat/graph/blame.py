"""Blame for values that are not finite: NaN, +inf, and -inf that is no mask."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

MASK = -1e30
"""Numbers at or below are those of a mask, whose sums overflow to -inf by design; no data are as large."""


def is_broken(values: npt.NDArray[Any]) -> bool:
    """Return True where floating-point `values` of any shape hold NaN or +inf, which no mask is made of."""
    return values.dtype.kind == "f" and bool((np.isnan(values) | np.isposinf(values)).any())


def has_minus_infinity(values: npt.NDArray[Any]) -> bool:
    """Return True where floating-point `values` of any shape hold -inf."""
    return values.dtype.kind == "f" and bool(np.isneginf(values).any())


def hides(values: npt.NDArray[Any]) -> bool:
    """Return True where floating-point `values` of any shape hold numbers of a mask, -inf among them."""
    return values.dtype.kind == "f" and bool((values <= MASK).any())


class Blame:
    """The tensor that values which are not finite come from, of those shown in the order in which they are computed.

    Blamed is the first tensor with NaN or +inf, or with -inf that is computed from numbers, as the logarithm of 0 is.
    What has -inf from a mask is blamed only where nothing else is: attention has one on purpose, and its Softmax is
    finite.
    """

    def __init__(self) -> None:
        self._origin: str | None = None
        self._masked: str | None = None

    def look(self, name: str, *, broken: bool, minus_infinity: bool, masked: bool) -> None:
        """Show a tensor.

        Args:
            name: of the tensor.
            broken: it holds NaN or +inf.
            minus_infinity: it holds -inf.
            masked: a tensor that it is computed from holds numbers of a mask (:func:`hides`), or it is given.
        """
        if self._origin is None and (broken or (minus_infinity and not masked)):
            self._origin = name
        elif self._masked is None and minus_infinity:
            self._masked = name

    @property
    def settled(self) -> bool:
        """An origin was shown; what follows changes nothing."""
        return self._origin is not None

    @property
    def name(self) -> str | None:
        """Name of the tensor to blame; None where all were finite."""
        return self._origin if self._origin is not None else self._masked
