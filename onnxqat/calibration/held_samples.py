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


def split(data: Data) -> tuple[Data, list[Feeds]]:
    """Most of `data`, and at most :data:`SAMPLES` of the others; none of too few batches.

    Args:
        data: calibration data, which can be read more than once.
    """
    rest, held = data.split(SHARE)
    try:
        return rest, list(held.few(SAMPLES))
    except DataError:
        return rest, []


def can_tell(held: list[Feeds]) -> bool:
    """Check whether there are enough samples."""
    return sum(samples_of(feeds) for feeds in held) >= FEWEST
