"""The range that holds a given share of the values."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from onnxqat.calibration.observers._histogram import BINS, HistogramObserver
from onnxqat.types import FloatArray, IntArray, TensorSpec

_Float64 = npt.NDArray[np.float64]


class Observer(HistogramObserver):
    """Cuts the rarest values off, per tensor or per channel; accurate to a bin (at most 1/2048 of the range).

    Where nearly everything is zero and nothing else would be left, the whole range is kept.

    Args:
        spec: how the tensor is to be quantized.
        percentile: share of the values to cover, in percent, over 50 and at most 100.
        two_sided: cut half of the rest at each end of the distribution; otherwise cut by magnitude. Default:
            two-sided for asymmetric specs, by magnitude for symmetric ones.
    """

    def __init__(self, spec: TensorSpec, percentile: float = 99.99, two_sided: bool | None = None) -> None:
        if not 50 < percentile <= 100:
            raise ValueError(f"a percentile of {percentile}; it must be over 50 and at most 100")
        super().__init__(spec)
        self.percentile = percentile
        self._two_sided = two_sided

    @property
    def two_sided(self) -> bool:
        """Check whether half of the rest is cut at each end: by default as the spec of now asks, which `for_spec` changes."""
        return not self.spec.symmetric if self._two_sided is None else self._two_sided

    def _clipped(self) -> tuple[FloatArray, FloatArray]:
        rest = 1 - self.percentile / 100
        zeros = self.zeros.astype(np.float64)
        if self.two_sided:
            low = _quantile(self.counts, zeros, self.count * rest / 2, self.width)
            high = _quantile(self.counts, zeros, self.count * (1 - rest / 2), self.width)
        else:
            folded = np.concatenate([np.zeros_like(self.counts[:, BINS:]), self.folded()], axis=1)
            high = _quantile(folded, zeros, self.count * (1 - rest), self.width)
            low = -high
        low, high = np.clip(low, self.low, self.high), np.clip(high, self.low, self.high)
        collapsed = (low == 0) & (high == 0)
        return np.where(collapsed, self.low, low), np.where(collapsed, self.high, high)

    def merge(self, other: Any) -> None:
        """As :meth:`BaseObserver.merge`; the percentiles must be the same."""
        if isinstance(other, Observer) and (other.percentile, other.two_sided) != (self.percentile, self.two_sided):
            raise ValueError("only observers of the same percentile can be merged")
        super().merge(other)


def _quantile(counts: IntArray, zeros: _Float64, mass: float, width: _Float64) -> _Float64:
    """The value below which `mass` of the values lie, a channel: (C,), interpolated inside its bin."""
    cumulated = np.cumsum(counts, axis=1).astype(np.float64)
    negative = cumulated[:, BINS - 1]
    at_zero = (mass > negative) & (mass <= negative + zeros)
    wanted = np.where(mass > negative + zeros, mass - zeros, mass)[:, None]
    index = np.minimum((cumulated < wanted).sum(axis=1), 2 * BINS - 1)
    row = np.arange(len(counts))
    inside = counts[row, index]
    before = cumulated[row, index] - inside
    part = np.clip((wanted[:, 0] - before) / np.maximum(inside, 1), 0, 1)
    return np.asarray(np.where(at_zero, 0.0, (index - BINS + part) * width))
