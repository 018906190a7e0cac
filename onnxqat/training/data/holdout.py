"""Samples that a run is scored on where the user gives no score: held out of training wherever data can be divided."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from onnxqat.data.data import Data
from onnxqat.training.data.batches import ArrayBatches, Batch, Batches, DataBatches, in_memory

SHARE = 5
"""One sample in so many is held out."""

FEWEST = 10
"""Fewer samples than this all take part in training: two held out of ten are the least that say anything."""

LARGEST = 500
"""Samples that are scored at most; the standard error of a share of 90 % is 1.3 points there."""


@dataclasses.dataclass(frozen=True)
class Split:
    """Divided data.

    Attributes:
        train: what to train on.
        scored: what to score on; empty where the data can be read only once.
        held_out: whether training does not see what is scored.
        data: what is scored as the data that a metric reads, where they come from a file or folder.
    """

    train: Batches
    scored: Sequence[Batch] = ()
    held_out: bool = False
    data: Data | None = None

    @property
    def samples(self) -> int:
        """Number of samples that are scored."""
        return sum(map(size, self.scored))


def split(source: Batches, *, has_labels: bool) -> Split:
    """Divide data into those to train on and those to score on, the same ones each time.

    Every fifth sample is held out; of more than 2,500 samples, about 500 at equal distances. Fewer than ten samples,
    and batches that only the caller's code can tell apart, are all trained on, and up to 500 of them scored.

    Args:
        source: the data.
        has_labels: whether training uses labels; without, small data are held in memory.
    """
    opened = source.data if isinstance(source, DataBatches) else None
    if isinstance(source, DataBatches):
        if not source.repeatable:
            return Split(source)
        if not has_labels:
            source = in_memory(source) or source
    parts = _parts(source)
    if parts is None:
        return Split(source, tuple(_first_batches(source)), data=None if opened is None else opened.first(LARGEST))
    train, held, share = parts
    data = opened.split(share)[1] if opened is not None and opened.numbered else None  # the same samples, by number
    return Split(train, tuple(held.epoch(0)), held_out=True, data=data)


def _parts(source: Batches) -> tuple[Batches, Batches, int] | None:
    """Divide data, holding out every n-th sample: (train, held, n); None where the data cannot be divided."""
    if isinstance(source, ArrayBatches):
        share = _share(source.samples, source.prescribed)
        divided = None if share is None else source.split(share)
        return None if share is None or divided is None else (*divided, share)
    if not isinstance(source, DataBatches) or source.seed is None or not source.data.numbered:
        return None
    share = _share(source.data.samples or 0, source.data.prescribed)
    if share is None:
        return None
    train, held = (DataBatches(part, seed=source.seed) for part in source.data.split(share))
    return train, held, share


def _share(samples: int, whole: int | None) -> int | None:
    """Return n to hold out every n-th sample; None for too few samples, or too few for a batch of `whole` per side."""
    share = max(SHARE, samples // LARGEST)
    if whole is not None:
        share = min(share, samples // whole)
    return share if samples >= FEWEST and share >= 2 else None


class Replayed:
    """Batches that can be read once and are read before their turn, then from the first one on.

    Args:
        source: where they come from.
    """

    def __init__(self, source: Batches) -> None:
        self._source = source
        self._held: list[Batch] = []
        self._rest: Iterator[Batch] | None = None

    @property
    def steps(self) -> int | None:
        """Batches per epoch; None when their number is not known in advance."""
        return self._source.steps

    def ahead(self) -> Iterator[Batch]:
        """The first batches, which the next epoch gives again."""
        self._rest = iter(self._source.epoch(0))
        for batch in self._rest:
            self._held.append(batch)
            yield batch

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of epoch `number`."""
        held, rest, self._held, self._rest = self._held, self._rest, [], None
        yield from held
        yield from self._source.epoch(number) if rest is None else rest


def _first_batches(source: Batches) -> Iterator[Batch]:
    """Batches of the first epoch until they hold :data:`LARGEST` samples."""
    seen = 0
    for batch in source.epoch(0):
        yield batch
        seen += size(batch)
        if seen >= LARGEST:
            return


def size(batch: Batch) -> int:
    """Samples in `batch`, by its first input with an axis."""
    return next((value.shape[0] for value in batch.inputs.values() if value.ndim), 1)
