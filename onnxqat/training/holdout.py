"""Samples to score a run on where the user gives no score: some that training does not see, where there are enough."""

from __future__ import annotations

from collections.abc import Iterator

from onnxqat.training.batches import ArrayBatches, Batch, Batches, DataBatches, in_memory

SMALLEST = 100
"""Fewer samples than this all take part in training, and all are scored."""

SHARE = 5
"""One sample in so many is held out."""

LARGEST = 256
"""Samples that are scored at most, where none are held out."""


def split(source: Batches, *, has_labels: bool) -> tuple[Batches, tuple[Batch, ...]]:
    """What to train on and what to score on; nothing to score where the data can be read only once.

    Without labels, every fifth of at least 100 samples is held out, the same ones each time: so little data is
    quickly learned by heart, and the training loss would not show it. With labels nothing is held out, because there
    the amount of data counts and is usually large; up to 256 training samples are scored.

    Args:
        source: the data.
        has_labels: whether training uses labels.
    """
    if isinstance(source, DataBatches):
        if not source.repeatable:
            return source, ()
        if not has_labels:
            source = in_memory(source) or source
    if isinstance(source, ArrayBatches) and not has_labels and source.samples >= SMALLEST:
        parts = source.split(SHARE)
        if parts is not None:
            train, held = parts
            return train, tuple(held.epoch(0))
    return source, tuple(_first(source))


def _first(source: Batches) -> Iterator[Batch]:
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
