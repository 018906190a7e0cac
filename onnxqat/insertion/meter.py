"""Noise of the outputs as a multiple of what is allowed, with some quantizers on and others off."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping

from onnxqat.calibration.noise import decibels_of, share_of
from onnxqat.insertion.switchboard import Switchboard
from onnxqat.insertion.trial import Trial
from onnxqat.runtime.non_finite import Origin
from onnxqat.types import QParams
from onnxqat.verdict import AMBER_SQNR

CORRECTION = 6.0
"""Largest difference in decibels between the file and its switchboard that is corrected for: the switchboard has neither
quantized biases nor weights that were rounded on data."""


@dataclasses.dataclass(frozen=True)
class Excess:
    """Noise of the output that has most of it, as a multiple of what the floor allows: 1 is on the floor.

    Attributes:
        value: the multiple; infinite where the output is not finite.
        output: its name; of a tensor that is watched, its own.
        decibels: signal to noise of the output.
    """

    value: float
    output: str
    decibels: float


class Meter:
    """Runs of a switchboard, counted.

    Args:
        board: the switches.
        tried: the result of the file itself; after NaN or infinities, being finite is all that is asked of an output.
        limit: number of runs that the caller has to keep to; :attr:`left` counts down.
    """

    def __init__(self, board: Switchboard, tried: Trial | Origin | None, limit: int) -> None:
        self._board, self._limit = board, limit
        self._on = frozenset(range(len(board.placements)))
        shares = board.noise(self._on)
        self._allowed = {name: _allowed(name, share, tried) for name, share in shares.items()}
        self.start = self._excess(shares)

    @property
    def left(self) -> int:
        """Runs that are left."""
        return self._limit - self._board.runs

    def excess(self, on: Collection[int] | None = None, parameters: Mapping[int, QParams] | None = None) -> Excess:
        """Measure the excess with the quantizers `on` alone (None: all), on other `parameters` where given."""
        return self._excess(self._board.noise(self._on if on is None else on, parameters))

    def _excess(self, shares: Mapping[str, float]) -> Excess:
        parts = {n: share if share == math.inf else share / self._allowed[n] for n, share in shares.items()}
        name = max(parts, key=parts.__getitem__, default="")
        share = shares.get(name, 0.0)
        return Excess(parts.get(name, 0.0), name, decibels_of(share))


def _allowed(name: str, share: float, tried: Trial | Origin | None) -> float:
    """The share of noise that an output may have.

    Where the file has less noise than its switchboard, the switchboard is allowed that much more, and the reverse.
    """
    if not isinstance(tried, Trial):
        return 1.0 if share == math.inf else math.inf
    wanted, found = AMBER_SQNR, tried.sqnr_db.get(name)
    if found is not None and 0 < share < math.inf and math.isfinite(found):
        wanted += min(max(decibels_of(share) - found, -CORRECTION), CORRECTION)
    return share_of(wanted)
