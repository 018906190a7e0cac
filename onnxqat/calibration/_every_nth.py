"""A share of a source: every n-th sample, or all others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onnxqat.calibration._sources import RawBatch, Source
from onnxqat.errors import DataError


class EveryNth(Source):
    """Every `share`-th sample of a source, counted from the `share`-th one, or with `others` the rest.

    Samples where the source can be read by their numbers and has a known length, batches elsewhere. A source that is
    sorted by class gives all classes to both parts.

    Args:
        source: it can be read more than once.
        share: at least 2.
        others: whether this is the rest.
        limit: nothing beyond so many samples of the source belongs to either part.

    Raises:
        DataError: ``data-format`` where the source can be read only once.
    """

    def __init__(self, source: Source, share: int, *, others: bool, limit: int | None = None) -> None:
        if not source.repeatable:
            raise DataError(
                "data-format",
                f"{source.name} can be read only once, and is needed several times",
                hint="pass a function that returns a new iterator, or a list",
            )
        self.name, self.batched = source.name, source.batched
        self._source, self._share, self._others = source, share, others
        self._numbers: list[int] | None = None
        if source.samples is not None and source.batched and source.samples and source.pick([0]) is not None:
            self._numbers = [n for n in range(min(source.samples, limit or source.samples)) if self._mine(n)]
            self.samples = len(self._numbers)
        elif source.known_batches is not None:
            self.known_batches = sum(map(self._mine, range(source.known_batches)))

    def _mine(self, number: int) -> bool:
        return (number % self._share == self._share - 1) != self._others

    def batches(self, size: int) -> Iterator[RawBatch]:
        """The samples by `size`, or the batches of the source."""
        if self._numbers is None:
            yield from (raw for number, raw in enumerate(self._source.batches(size)) if self._mine(number))
            return
        for start in range(0, len(self._numbers), size):
            found = self._source.pick(self._numbers[start : start + size])
            assert found is not None
            yield found

    def pick(self, indices: Sequence[int]) -> RawBatch | None:
        """One batch of the samples of these numbers within this part."""
        return None if self._numbers is None else self._source.pick([self._numbers[index] for index in indices])
