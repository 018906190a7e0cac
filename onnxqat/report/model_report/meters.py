"""Histograms of what quantizers round, and of the codes that come of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from onnxqat import numerics
from onnxqat.metrics._closeness import Difference
from onnxqat.report.model_report import schema
from onnxqat.types import QParams
from onnxqat.validation.tensor_statistics import StatisticsMeter

Array = npt.NDArray[Any]

BARS = 64
"""Bars of a histogram: more are not told apart in the width of a side column."""
SHOWN = 1024
"""Scales of one quantizer that the report holds: the channels of nearly every convolution."""
BUDGET = 200_000
"""Scales of all quantizers together, about 2 MB of JSON; beyond it each shows fewer."""
_COUNTED_BITS = 16


class ValuesMeter:
    """Sums up the values that one quantizer rounds, batch by batch.

    Args:
        qparams: grid, scale and zero point.
        is_weight: whether axis 0 is that of the channels, where the quantizer has none.
    """

    def __init__(self, qparams: QParams, *, is_weight: bool) -> None:
        self._qparams, self._statistics = qparams, StatisticsMeter(qparams, is_weight=is_weight)
        self._noise = Difference()
        grid = qparams.qtype
        counted = not grid.is_float and grid.bits <= _COUNTED_BITS
        self._counts = np.zeros(grid.quant_max - grid.quant_min + 1, np.int64) if counted else None

    def update(self, values: Array) -> None:
        """Take in one batch, float, of any shape."""
        if not values.size:
            return
        values = np.asarray(values, np.float32)
        self._statistics.update(values)
        codes = numerics.quantize(values, self._qparams)
        self._noise.update(numerics.dequantize(codes, self._qparams), values)
        if self._counts is not None:
            self._counts += np.bincount(codes.ravel() - self._qparams.qtype.quant_min, minlength=self._counts.size)

    def result(self) -> schema.Values | None:
        """Return the histograms; None before any value."""
        found = self._statistics.result()
        if found is None:
            return None
        width = 1 if self._counts is None else -(-self._counts.size // BARS)
        counts = [] if self._counts is None else _joined(self._counts, width)
        return schema.Values(
            low=significant(found.low),
            high=significant(found.high),
            counts=_joined(np.asarray(found.histogram, np.int64), len(found.histogram) // BARS),
            first_code=self._qparams.qtype.quant_min,
            codes_per_bin=width,
            code_counts=counts,
            saturated=significant(found.saturated),
            unused_codes=found.unused_codes,
            codes=found.codes,
            dead_channels=found.dead_channels,
            channels=found.channels,
            values=found.values,
            own_db=schema.decibel(self._noise.sqnr_db),
        )


def _joined(counts: npt.NDArray[np.int64], width: int) -> list[int]:
    """Add up each `width` counts; the last bar may stand for fewer."""
    padded = np.pad(counts, (0, -counts.size % width))
    return [int(count) for count in padded.reshape(-1, width).sum(axis=1)]


def significant(value: float) -> float:
    """Return `value` to six significant digits, which are as many as float32 holds."""
    return float(f"{value:.6g}")


def parameters(qparams: QParams, shown: int, values: schema.Values | None) -> schema.Parameters:
    """Return the parameters as the report holds them, `shown` scales at most."""
    scale, zero = qparams.scale.ravel(), qparams.zero_point.ravel()
    step = max(1, -(-scale.size // max(shown, 1)))
    same = bool((zero == zero[:1]).all())
    low, high = _ends(qparams)
    part = scale[::step]
    return schema.Parameters(
        scale=[significant(float(s)) for s in part],
        zero_point=[int(z) for z in (zero[:1] if same else zero[::step])],
        shown=int(part.size),
        total=int(scale.size),
        scale_low=significant(float(scale.min())) if scale.size else 0.0,
        scale_high=significant(float(scale.max())) if scale.size else 0.0,
        clip_low=significant(low),
        clip_high=significant(high),
        values=values,
    )


def _ends(qparams: QParams) -> tuple[float, float]:
    """Return the smallest and the largest value that the grid holds in any channel."""
    if not qparams.scale.size:
        return 0.0, 0.0
    grid, zero = qparams.qtype, 0 if qparams.qtype.is_float else qparams.zero_point
    scale = qparams.scale.astype(np.float64)
    ends = np.concatenate([((grid.quant_min - zero) * scale).ravel(), ((grid.quant_max - zero) * scale).ravel()])
    return float(ends.min()), float(ends.max())


def shares(totals: list[int]) -> list[int]:
    """Return how many scales each quantizer shows: all up to :data:`SHOWN`, fewer where :data:`BUDGET` is passed."""
    limit = SHOWN
    while limit > 1 and sum(min(total, limit) for total in totals) > BUDGET:
        limit //= 2
    return [min(total, limit) for total in totals]
