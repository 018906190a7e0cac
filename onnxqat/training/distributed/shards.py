"""Division of the training and scoring data among the processes."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from onnxqat.errors import DataError
from onnxqat.training.data.batches import Batch, Batches, DataBatches
from onnxqat.training.data.holdout import size
from onnxqat.training.distributed.group import Group
from onnxqat.training.distributed.process_context import ProcessContext


@dataclasses.dataclass(frozen=True)
class Sharded:
    """Marks data that are not the same on every process, so that each trains on all that it is given.

    Attributes:
        data: an iterable or a callable that gives batches, such as a ``DataLoader`` with a ``DistributedSampler``.
    """

    data: Any


def part(batch: Batch, rank: int, size_of_world: int) -> Batch:
    """The samples of `batch` that process `rank` takes: a run of neighbours, as long as the others' or one longer.

    The weight makes the mean over the processes the mean over the samples of `batch`. Where there are fewer samples
    than processes, some take a sample that counts nothing, because all have to take part in each step. A batch whose
    inputs have no common first axis is not cut: every process takes all of it.
    """
    count = size(batch)
    if any(value.ndim == 0 or value.shape[0] != count for value in batch.inputs.values()):
        return batch
    start, stop, weight = _run(count, rank, size_of_world)
    labels = batch.labels
    if labels is not None and labels.ndim and labels.shape[0] == count:
        labels = labels[start:stop]
    return Batch(
        {name: value[start:stop] for name, value in batch.inputs.items()}, labels, weight * batch.weight, count
    )


def _run(count: int, rank: int, size_of_world: int) -> tuple[int, int, float]:
    """Return start and stop of the samples, out of `count`, that process `rank` takes, and the weight of their loss."""
    start, stop = (count * r // size_of_world for r in (rank, rank + 1))
    weight = (stop - start) * size_of_world / max(count, 1)
    if start == stop:
        start = min(start, max(count - 1, 0))
    return start, max(stop, start + 1), weight


def slices(batches: Iterable[Batch], world: ProcessContext) -> Iterator[Batch]:
    """The part of this process of every batch."""
    for batch in batches:
        yield part(batch, world.rank, world.size)


def rounds(batches: Iterable[Batch], world: ProcessContext) -> Iterator[Batch]:
    """Deal whole batches to ranks: out of every `world.size` consecutive batches, yield the one of this rank.

    If the last round is short, surplus ranks repeat its last batch with weight 0, so that all ranks do as many steps.
    """
    source = iter(batches)
    while held := list(itertools.islice(source, world.size)):
        mine = held[min(world.rank, len(held) - 1)]
        total = sum(size(batch) for batch in held)
        weight = size(mine) * world.size / max(total, 1) if world.rank < len(held) else 0.0
        yield dataclasses.replace(mine, weight=weight, samples=total)


class Slices:
    """A part of every batch, so that the order of samples is that of one process; of images, no others are read.

    Args:
        source: the same batches on every process.
        world: the processes.
    """

    def __init__(self, source: Batches, world: ProcessContext) -> None:
        self._source, self._world = source, world

    @property
    def steps(self) -> int | None:
        """Batches per epoch."""
        return self._source.steps

    def epoch(self, number: int) -> Iterator[Batch]:
        """The parts of this process."""
        source = self._source
        order = source.order(number) if isinstance(source, DataBatches) else None
        if order is None or not isinstance(source, DataBatches):
            yield from slices(source.epoch(number), self._world)
            return
        for chosen in order:
            start, stop, weight = _run(len(chosen), self._world.rank, self._world.size)
            batch = source.pick(chosen[start:stop])
            yield dataclasses.replace(batch, weight=weight, samples=len(chosen))


class Rounds:
    """Whole batches in turn, for a model that prescribes its batch size: `size` of them make one step.

    Args:
        source: the same batches on every process.
        world: the processes.
    """

    def __init__(self, source: Batches, world: ProcessContext) -> None:
        self._source, self._world = source, world

    @property
    def steps(self) -> int | None:
        """Steps per epoch; in the last, some processes may have a batch of weight 0."""
        steps = self._source.steps
        return None if steps is None else -(-steps // self._world.size)

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of this process."""
        return rounds(self._source.epoch(number), self._world)


class Own:
    """Batches that are this process's already; a process that runs out goes on with one that counts nothing.

    Args:
        source: other batches on every process.
        world: the processes.
    """

    def __init__(self, source: Batches, world: Group) -> None:
        self._source, self._world = source, world

    @property
    def steps(self) -> int | None:
        """Steps per epoch of the process with the most; None where a process does not know them."""
        steps = self._source.steps
        known = torch.tensor([-1 if steps is None else steps], dtype=torch.int64, device=self._world.device)
        least, most = self._world.least(known), self._world.greatest(known)
        return None if int(least) < 0 else int(most)

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of this process until no process has one.

        Raises:
            DataError: ``data-missing`` on every process when one of them has no batch at all.
        """
        last: Batch | None = None
        for batch in itertools.chain(self._source.epoch(number), itertools.repeat(None)):
            count = 0 if batch is None else size(batch)
            last = last if batch is None else batch
            said = torch.tensor([count, last is None], dtype=torch.int64, device=self._world.device)
            total, without = self._world.total(said).tolist()
            if total and without:
                raise DataError("data-missing", f"{without} of {self._world.size} processes have no training data")
            if not total or last is None:
                return
            yield dataclasses.replace(last, weight=count * self._world.size / total, samples=total)


def shard(source: Batches, world: ProcessContext, *, own: bool, whole: bool) -> Batches:
    """The batches of this process; `source` itself where there is only one.

    Args:
        source: what one process would train on.
        world: the processes.
        own: whether `source` is another on each process (:class:`Sharded`).
        whole: whether the model prescribes its batch size.
    """
    if world.size == 1:
        return source
    if own:
        assert isinstance(world, Group)
        return Own(source, world)
    return Rounds(source, world) if whole else Slices(source, world)


def shard_scored(scored: Sequence[Batch], world: ProcessContext, *, own: bool, whole: bool) -> tuple[Batch, ...]:
    """Return this process's share of the batches that the run is scored on; arguments as in :func:`shard`."""
    if world.size == 1 or own:
        return tuple(scored)
    return tuple((rounds if whole else slices)(scored, world))
