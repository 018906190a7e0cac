"""Some of the samples or batches of a source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onnxqat.data.identity import Identity
from onnxqat.data.sources import Annotator, RawBatch, Source


class Numbered(Source):
    """The samples of these numbers, in this order, of a source that can be read by number."""

    def __init__(self, source: Source, numbers: Sequence[int]) -> None:
        self.name, self.samples, self.numbered = source.name, len(numbers), True
        self._source, self._numbers, self.transform = source, list(numbers), source.transform

    def identity(self) -> Identity:
        """That of the whole source."""
        return self._source.identity()

    def annotated(self, read: Annotator) -> Numbered | None:
        """The same samples of the annotated source."""
        inner = self._source.annotated(read)
        return None if inner is None else Numbered(inner, self._numbers)

    def batches(self, size: int) -> Iterator[RawBatch]:
        """The samples by `size`."""
        for start in range(0, len(self._numbers), size):
            yield self.pick(range(start, min(start + size, len(self._numbers))))

    def pick(self, indices: Sequence[int]) -> RawBatch:
        """One batch of the samples of these places."""
        found = self._source.pick([self._numbers[index] for index in indices])
        assert found is not None
        return found


class SomeBatches(Source):
    """The batches of these numbers, in rising order, of a source whose batches have their own size."""

    def __init__(self, source: Source, numbers: Sequence[int]) -> None:
        self.name, self.batched, self.known_batches = source.name, source.batched, len(numbers)
        self._source, self._numbers, self.transform = source, list(numbers), source.transform

    def identity(self) -> Identity:
        """That of the whole source."""
        return self._source.identity()

    def batches(self, size: int) -> Iterator[RawBatch]:
        """Those of the numbers."""
        return self._source.batches_at(self._numbers, size)


class EveryNth(Source):
    """Every `share`-th batch of a source, counted from the `share`-th one, or with `others` the rest."""

    def __init__(self, source: Source, share: int, *, others: bool) -> None:
        self.name, self.batched = source.name, source.batched
        self._source, self._share, self._others = source, share, others
        self.transform = source.transform
        if source.known_batches is not None:
            self.known_batches = sum(map(self._mine, range(source.known_batches)))

    def identity(self) -> Identity:
        """That of the whole source."""
        return self._source.identity()

    def _mine(self, number: int) -> bool:
        return (number % self._share == self._share - 1) != self._others

    def batches(self, size: int) -> Iterator[RawBatch]:
        """The batches of the source that belong to this part."""
        yield from (raw for number, raw in enumerate(self._source.batches(size)) if self._mine(number))

    def batches_at(self, numbers: Sequence[int], size: int) -> Iterator[RawBatch]:
        """Those batches of this part, read by their numbers in the source."""
        mine = [number for number in range(self._source.known_batches or 0) if self._mine(number)]
        if not mine:
            return super().batches_at(numbers, size)
        return self._source.batches_at([mine[number] for number in numbers], size)


def split(source: Source, share: int, limit: int | None) -> tuple[Source, Source]:
    """All samples but every `share`-th, and those; batches where single samples cannot be read.

    Args:
        source: it can be read more than once.
        share: at least 2.
        limit: nothing beyond so many samples belongs to either part, where single samples can be read.

    Raises:
        DataError: ``data-format`` where the source can be read only once.
    """
    source.check_repeatable("is needed several times")
    if not source.numbered:
        return EveryNth(source, share, others=True), EveryNth(source, share, others=False)
    numbers = range(min(source.samples or 0, limit or source.samples or 0))
    held = [n for n in numbers if n % share == share - 1]
    return Numbered(source, [n for n in numbers if n % share != share - 1]), Numbered(source, held)


def spread(source: Source, limit: int | None) -> Source:
    """`source`, or `limit` samples from all over it where it is sorted by class."""
    samples = source.samples
    if limit is None or samples is None or samples <= limit or not source.sorted_by_class:
        return source
    return Numbered(source, _evenly(samples, limit))


def evenly(source: Source, limit: int, size: int, within: int | None = None) -> Source:
    """`source`, or at least `limit` samples from all over it, where their number or that of its batches is known.

    Neighbours are often alike: frames of one film, windows of one recording, images of one class.

    Args:
        source: it can be read more than once; one that cannot is given back as it is.
        limit: samples that are enough.
        size: samples of a batch, where the source can choose.
        within: nothing beyond so many samples is taken.
    """
    if not source.repeatable:
        return source
    samples, known = source.samples, source.known_batches
    if source.numbered and samples is not None:
        samples = min(samples, within or samples)
        return source if samples <= limit else Numbered(source, _evenly(samples, limit))
    if known is None or not (each := batch_size(source, size)):
        return source
    known, wanted = min(known, -(-(within or known * each) // each)), -(-limit // each)
    return source if known <= wanted else SomeBatches(source, _evenly(known, wanted))


def batch_size(source: Source, size: int) -> int:
    """Samples in the first batch of `source`, or 1 where its inputs have no common axis; 0 where there is none."""
    first = next(source.batches(size), None)
    if first is None:
        return 0
    axes = {array.shape[0] if array.ndim else 1 for array in first.feeds.values()} if source.batched else {1}
    return max(axes.pop(), 1) if len(axes) == 1 else 1


def _evenly(count: int, wanted: int) -> list[int]:
    """`wanted` numbers below `count`, the first one among them."""
    return [place * count // wanted for place in range(wanted)]
