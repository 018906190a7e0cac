"""Models whose weights were rounded on data, kept for a later step that needs the same ones."""

from __future__ import annotations

import collections
import dataclasses

import onnx_ir as ir

from onnxqat.calibration.resolve import Resolved
from onnxqat.calibration.rounding import Grids, Insert, Wanted
from onnxqat.types import Remark

KEPT = 2
"""Models that are kept: the trial of ranges rounds one for each of its two choices."""


@dataclasses.dataclass(frozen=True, eq=False)
class Rounded:
    """A model whose weights were rounded.

    Attributes:
        model: without quantizers.
        remarks: none where nothing was rounded.
        grids: parameters of weights that got others.
        turns: what inserted the quantizers, where layers were rounded one behind the other; None where each was rounded
            alone.
    """

    model: ir.Model
    remarks: tuple[Remark, ...] = ()
    grids: Grids = dataclasses.field(default_factory=dict)
    turns: Insert | None = None


class KeptRoundings:
    """Copies of one float model whose layers were rounded in turn, all on the same data.

    The trial of ranges already rounds the weights of the file that is then written; a deep network takes a minute.
    """

    def __init__(self) -> None:
        self._kept: collections.deque[tuple[Resolved, Wanted, Rounded]] = collections.deque(maxlen=KEPT)

    def find(self, resolved: Resolved, wanted: Wanted) -> Rounded | None:
        """Return the copy that was rounded by the same parameters; None where there is none."""
        for before, asked, rounded in self._kept:
            if asked == wanted and _are_same(before, resolved):
                return rounded
        return None

    def keep(self, resolved: Resolved, wanted: Wanted, rounded: Rounded) -> None:
        """Keep `rounded` in the place of the oldest one."""
        self._kept.append((resolved, wanted, rounded))


def _are_same(one: Resolved, other: Resolved) -> bool:
    """Check whether two sets of parameters, of one model and from the same data, are equal."""
    if one.biases != other.biases or one.largest_codes.keys() != other.largest_codes.keys():
        return False
    pairs = zip(one.placements, other.placements, strict=False)
    return len(one.placements) == len(other.placements) and all(
        (a.tensor, a.consumers, a.group) == (b.tensor, b.consumers, b.group) and a.qparams.same(b.qparams)
        for a, b in pairs
    )
