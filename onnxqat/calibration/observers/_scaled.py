"""Range that leads to a wanted scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from onnxqat.types import FloatArray, TensorSpec

Floats = npt.NDArray[np.float64]


def scale_of(low: npt.NDArray[Any], high: npt.NDArray[Any], spec: TensorSpec) -> Floats:
    """The scale, free of any restriction, that covers each range; 0 where there is nothing but zeros."""
    low, high = np.minimum(low.astype(np.float64), 0), np.maximum(high.astype(np.float64), 0)
    width = np.maximum(-low, high) if spec.symmetric else high - low
    return np.asarray(width / spec.codes_above)


def with_scale(low: FloatArray, high: FloatArray, spec: TensorSpec, scale: Floats) -> tuple[Floats, Floats]:
    """``[low, high]`` shrunk towards zero so far that its scale is `scale`, (C,); never wider than it is.

    Both ends of an asymmetric range shrink in proportion.
    """
    widest = scale_of(low, high, spec)
    factor = np.minimum(scale / np.where(widest > 0, widest, 1), 1)
    if spec.symmetric:
        threshold = widest * factor * spec.codes_above
        start, stop = -threshold, threshold
    else:
        start, stop = np.minimum(low, 0) * factor, np.maximum(high, 0) * factor
    return np.clip(start, low, high), np.clip(stop, low, high)
