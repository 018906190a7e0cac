"""Noise of one array against another, and the signal beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def squares(value: npt.NDArray[Any], reference: npt.NDArray[Any]) -> tuple[float, float]:
    """Sums of squares of ``value - reference`` and of `reference`, in float64, over what is finite in both.

    Args:
        value: numbers of any type and shape.
        reference: of the same shape.
    """
    x, wanted = np.asarray(value, np.float64).ravel(), np.asarray(reference, np.float64).ravel()
    # Masks of -inf are in both, and are no noise.
    finite = np.isfinite(x) & np.isfinite(wanted)
    x, wanted = x[finite], wanted[finite]
    return float(np.square(x - wanted).sum()), float(np.square(wanted).sum())
