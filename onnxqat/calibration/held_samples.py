"""Calibration samples that are held out, to tell on them if a change of the network helps."""

from __future__ import annotations

from onnxqat.data.data import Data
from onnxqat.data.inputs import Feeds, samples_of
from onnxqat.errors import DataError

SHARE = 8
"""One sample in so many is held out."""

SAMPLES = 16
"""Held-out samples that are run: whether noise at the outputs falls shows on few."""

FEWEST = 4
"""Held-out samples without which nothing can be told."""

LARGEST_SHARE = 3
"""One sample in so many is held out at most, for :data:`FEWEST` of few: rounding overfits the others."""


def split(data: Data) -> tuple[Data, list[Feeds]]:
    """Most of `data`, and at most :data:`SAMPLES` of the others; none of too few batches.

    Of fewer samples than :data:`SHARE` times :data:`FEWEST`, a larger share.

    Args:
        data: calibration data, which can be read more than once.
    """
    rest, held = data.split(_share(data))
    try:
        return rest, list(held.few(SAMPLES))
    except DataError:
        return rest, []


def _share(data: Data) -> int:
    """One of how many samples, or batches of their own size, is held out."""
    found = data.divisible()
    if found is None:
        return SHARE
    count, each = found
    needed = -(-max(FEWEST, data.prescribed or 1) // each)
    return SHARE if count < LARGEST_SHARE * needed else min(SHARE, count // needed)


def can_tell(held: list[Feeds]) -> bool:
    """Check whether there are enough samples."""
    return sum(samples_of(feeds) for feeds in held) >= FEWEST
