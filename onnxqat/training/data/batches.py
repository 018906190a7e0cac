"""Training data as batches of tensors, shuffled with a seed where onnxqat reads the samples itself."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from onnxqat.data.arrays import split_labels
from onnxqat.data.data import Data
from onnxqat.data.inputs import Feeds, InputInfo, check_names, fitted, static_batch
from onnxqat.data.preprocess import Preprocess
from onnxqat.data.recorded import Recorded
from onnxqat.errors import DataError, UsageError
from onnxqat.types import Remark

POOL_BYTES = 2**30
"""Limit on what is held in memory to shuffle what can only be read from the start; less than that is shuffled as a whole."""


@dataclasses.dataclass(frozen=True)
class Batch:
    """Inputs by ONNX name and the labels, None without.

    Attributes:
        weight: what the mean loss of this batch counts among those of the processes that train together.
        samples: how many these processes have in it together; None: those of this batch.
    """

    inputs: dict[str, Tensor]
    labels: Tensor | None = None
    weight: float = 1.0
    samples: int | None = None

    @property
    def all_samples(self) -> int:
        """Samples that all processes have in it together."""
        if self.samples is not None:
            return self.samples
        return next((value.shape[0] for value in self.inputs.values() if value.ndim), 1)

    def to(self, device: torch.device) -> Batch:
        """The batch on `device`."""
        inputs = {name: value.to(device, non_blocking=True) for name, value in self.inputs.items()}
        labels = None if self.labels is None else self.labels.to(device, non_blocking=True)
        return Batch(inputs, labels, self.weight, self.samples)


class Batches(Protocol):
    """Source of the training loop's batches, epoch by epoch."""

    @property
    def steps(self) -> int | None:
        """Batches per epoch; None when their number is not known in advance."""

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of epoch `number`, counted from 0; the same ones each time it is asked for."""


class ArrayBatches:
    """Samples in arrays, shuffled anew each epoch; the order follows from seed and epoch alone.

    Args:
        arrays: one array for each input, samples along axis 0.
        labels: array of the same length, or None.
        inputs: the model's inputs; where they prescribe the batch size, samples left over are left out of the epoch.
        batch_size: samples per batch, where the model does not prescribe it.
        seed: of the order.

    Raises:
        DataError: ``data-missing``, ``data-input-name``, ``data-shape``, ``data-labels``.
    """

    def __init__(
        self, arrays: Mapping[str, Any], labels: Any, inputs: Sequence[InputInfo], *, batch_size: int, seed: int
    ) -> None:
        check_names(arrays, inputs, "the training data")
        self._inputs = tuple(inputs)
        self._arrays = {name: _array(value) for name, value in arrays.items()}
        self._labels = None if labels is None else _labels(labels)
        lengths = {name: len(value) if value.ndim else 0 for name, value in self._arrays.items()}
        self._samples = next(iter(lengths.values()), 0)
        if len(set(lengths.values())) > 1:
            raise DataError("data-shape", f"the inputs have different numbers of samples: {lengths}")
        if self._labels is not None and len(self._labels) != self._samples:
            raise DataError("data-labels", f"there are {len(self._labels)} labels for {self._samples} samples")
        prescribed = static_batch(inputs)
        self._size, self._whole, self._seed = prescribed or batch_size, prescribed is not None, seed
        if self.steps < 1:
            raise DataError("data-missing", f"{self._samples} samples do not fill one batch of {self._size}")

    @property
    def samples(self) -> int:
        """Their number."""
        return self._samples

    @property
    def prescribed(self) -> int | None:
        """Batch size that the model prescribes."""
        return self._size if self._whole else None

    def split(self, share: int) -> tuple[ArrayBatches, ArrayBatches] | None:
        """All samples but every `share`-th, and those; None where either would not fill a batch."""
        held = np.arange(self._samples) % share == share - 1
        if self._whole and min(held.sum(), (~held).sum()) < self._size:
            return None
        return self._part(~held), self._part(held)

    def _part(self, chosen: npt.NDArray[np.bool_]) -> ArrayBatches:
        arrays = {name: array[chosen] for name, array in self._arrays.items()}
        labels = None if self._labels is None else self._labels[chosen]
        return ArrayBatches(arrays, labels, self._inputs, batch_size=self._size, seed=self._seed)

    @property
    def steps(self) -> int:
        """Batches per epoch."""
        return self._samples // self._size if self._whole else -(-self._samples // self._size)

    def epoch(self, number: int) -> Iterator[Batch]:
        """Batches in the order of epoch `number`."""
        order = np.random.default_rng((self._seed, number)).permutation(self._samples)
        for step in range(self.steps):
            chosen = np.sort(order[step * self._size : (step + 1) * self._size])
            feeds = {i.name: fitted(self._arrays[i.name][chosen], i, "the training data") for i in self._inputs}
            yield _batch(feeds, None if self._labels is None else self._labels[chosen])


class DataBatches:
    """Batches of :class:`onnxqat.data.data.Data`.

    Args:
        data: where they come from.
        seed: of the order; None leaves batches as they come. Samples that can be read by number are shuffled as a whole,
            others within pools of :data:`POOL_BYTES`.
        repeatable: whether the data can be read more than once (an iterator cannot).
    """

    def __init__(self, data: Data, *, seed: int | None = None, repeatable: bool = True) -> None:
        self.repeatable = repeatable
        self._data, self._seed = data, seed

    @property
    def data(self) -> Data:
        """Data that the batches are read from."""
        return self._data

    @property
    def seed(self) -> int | None:
        """Seed of the order, None for batches as they come."""
        return self._seed

    @property
    def steps(self) -> int | None:
        """Batches per epoch, where their number is known before reading."""
        return self._data.batches

    def order(self, number: int) -> list[npt.NDArray[np.int64]] | None:
        """The samples of each batch of epoch `number` by their numbers, for :meth:`pick`.

        None where :meth:`epoch` alone knows: the data can only be read from the start, or come as they are.
        """
        sizes = self._data.sizes
        if not sizes or not self._data.numbered or self._seed is None:
            return None
        order = np.random.default_rng((self._seed, number)).permutation(sum(sizes))
        return list(np.split(order, np.cumsum(sizes)[:-1]))

    def pick(self, indices: npt.NDArray[np.int64]) -> Batch:
        """The samples of these numbers, as :meth:`order` gives them; at least one."""
        found = self._data.pick(indices.tolist())
        assert found is not None
        return _batch(*found)

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of one pass over the data."""
        if self._seed is None:
            for feeds, labels in self._data.labelled():
                yield _batch(feeds, labels)
            return
        order = self.order(number)
        if order is not None:
            yield from map(self.pick, order)
            return
        random = np.random.default_rng((self._seed, number))
        pool: list[tuple[Feeds, npt.NDArray[Any] | None]] = []
        held = 0
        for feeds, labels in self._data.labelled():
            pool.append((feeds, labels))
            held += sum(array.nbytes for array in feeds.values())
            if held > POOL_BYTES:
                yield from _shuffled(pool, random)
                pool, held = [], 0
        yield from _shuffled(pool, random)


def _sample_shapes(feeds: Feeds) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Names and shapes of one sample of a batch."""
    return tuple((name, a.shape[1:]) for name, a in feeds.items())


def _lengths(feeds: Feeds) -> set[int | None]:
    """Number of samples of each input of a batch; None for a scalar."""
    return {a.shape[0] if a.ndim else None for a in feeds.values()}


def _shuffled(pool: list[tuple[Feeds, npt.NDArray[Any] | None]], random: np.random.Generator) -> Iterator[Batch]:
    """The samples of `pool` in another order, in batches of the same sizes; whole batches where shapes differ."""
    if not pool:
        return
    shapes = {_sample_shapes(feeds) for feeds, _ in pool}
    lengths = [_lengths(feeds) for feeds, _ in pool]
    labelled = {labels is not None and labels.ndim > 0 for _, labels in pool}
    if len(shapes) > 1 or len(labelled) > 1 or any(len(n) != 1 or None in n for n in lengths):
        for index in random.permutation(len(pool)):
            yield _batch(*pool[index])
        return
    sizes = [int(next(iter(n)) or 0) for n in lengths]
    feeds = {name: np.concatenate([f[name] for f, _ in pool]) for name in pool[0][0]}
    labels = np.concatenate([y for _, y in pool if y is not None]) if labelled == {True} else None
    order, start = random.permutation(sum(sizes)), 0
    for size in sizes:
        chosen = order[start : start + size]
        yield _batch({name: a[chosen] for name, a in feeds.items()}, None if labels is None else labels[chosen])
        start += size


def make(
    data: Any,
    labels: Any,
    inputs: Sequence[InputInfo],
    *,
    batch_size: int,
    seed: int,
    preprocess: Preprocess | None = None,
    recorded: Recorded | None = None,
    limit: int | None = None,
) -> Batches:
    """Batches of `data`.

    1. An object with ``epoch`` and ``steps`` (:class:`Batches`): as it is.
    2. A mapping of arrays, or one array for a model with one input; `labels` go with them, or lie in the mapping as
       in a ``.npz`` file: shuffled.
    3. A path, as :func:`onnxqat.data.data.open_data` reads it: shuffled.
    4. An iterable or a callable that gives batches, ``inputs`` or ``(inputs, labels)``: in its own order.

    Args:
        data: see above.
        labels: of array data.
        inputs: the model's inputs.
        batch_size: samples per batch, where the model does not prescribe it.
        seed: of the order.
        preprocess: for a folder of images.
        recorded: what the model's file says of its calibration: the default for `preprocess`.
        limit: read at most so many samples, the first ones; None: all.

    Raises:
        DataError: ``data-...``, what is wrong with the data.
        UsageError: ``option-invalid``.
    """
    if batch_size < 1:
        raise UsageError("option-invalid", f"batch size {batch_size}; it must be at least 1")
    if limit is not None and limit < 1:
        raise UsageError("option-invalid", f"a limit of {limit} samples; it must be at least 1")
    if hasattr(data, "epoch") and hasattr(data, "steps"):
        if limit is not None:
            raise UsageError("option-invalid", "batches of your own are not limited; make fewer of them")
        return data  # type: ignore[no-any-return]
    if isinstance(data, (np.ndarray, Tensor)):
        if len(inputs) != 1:
            raise DataError("data-input-name", f"one array for {len(inputs)} inputs", hint="pass a mapping")
        data = {inputs[0].name: data}
    if isinstance(data, Mapping):
        data, own = split_labels(data, inputs)
        labels = own if labels is None else labels
        if limit is not None:
            data = {name: array[:limit] for name, array in data.items()}
            labels = None if labels is None else labels[:limit]
        return ArrayBatches(data, labels, inputs, batch_size=batch_size, seed=seed)
    if labels is not None:
        raise UsageError("option-invalid", "labels go with arrays; an iterable yields (inputs, labels)")
    named = isinstance(data, (str, os.PathLike))
    opened = (recorded or Recorded()).open(data, inputs, preprocess=preprocess, batch_size=batch_size, limit=limit)
    return DataBatches(opened, seed=seed if named else None, repeatable=not isinstance(data, Iterator))


def remarks_of(source: Batches) -> tuple[Remark, ...]:
    """Return the remarks of opening and reading the data so far."""
    return tuple(source.data.remarks) if isinstance(source, DataBatches) else ()


def yields_labels(source: Batches) -> bool:
    """Check whether the first batch of the data has labels. Data that can be read only once are taken to have them."""
    if isinstance(source, DataBatches) and not source.repeatable:
        return True
    first = next(iter(source.epoch(0)), None)
    return first is not None and first.labels is not None


def in_memory(source: DataBatches) -> ArrayBatches | None:
    """The samples of a file or folder as arrays; None where they are too many, of different shapes, or not onnxqat's to shuffle."""
    if source.seed is None or source.data.batches is None:
        return None
    held: list[tuple[Feeds, npt.NDArray[Any] | None]] = []
    size = 0
    for feeds, labels in source.data.labelled():
        held.append((feeds, labels))
        size += sum(array.nbytes for array in feeds.values())
        lengths = _lengths(feeds)
        if size > POOL_BYTES or len(lengths) != 1 or None in lengths:
            return None
    if len({_sample_shapes(feeds) for feeds, _ in held}) != 1:
        return None
    labelled = all(labels is not None and labels.ndim > 0 for _, labels in held)
    arrays = {name: np.concatenate([feeds[name] for feeds, _ in held]) for name in held[0][0]}
    labels = np.concatenate([y for _, y in held if y is not None]) if labelled else None
    largest = max(len(next(iter(feeds.values()))) for feeds, _ in held)
    return ArrayBatches(arrays, labels, source.data.inputs, batch_size=largest, seed=source.seed)


def _labels(value: Any) -> npt.NDArray[Any]:
    try:
        return _array(value)
    except ValueError as error:  # rows of unlike lengths
        hint = "give one array; a loss of your own may take it apart for several outputs"
        raise DataError("data-labels", f"the labels are no array: {error}", hint=hint) from None


def _array(value: Any) -> npt.NDArray[Any]:
    return np.asarray(value.numpy(force=True) if isinstance(value, Tensor) else value)


def _batch(feeds: Feeds, labels: npt.NDArray[Any] | None) -> Batch:
    inputs = {name: _tensor(array, name) for name, array in feeds.items()}
    if labels is None:
        return Batch(inputs)
    held = _tensor(labels, "the labels")
    return Batch(inputs, held.to(torch.float32) if held.is_floating_point() else held.to(torch.int64))


def _tensor(array: npt.NDArray[Any], name: str) -> Tensor:
    if array.dtype.kind not in "fiub":
        hint = "give numbers; a label is that of its class, counted from 0"
        raise DataError("data-format", f"{name}: values of type {array.dtype} cannot be trained on", hint=hint)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise DataError("data-non-finite", f"{name}: the training data has values that are not finite")
    return torch.from_numpy(np.array(array, copy=True, order="C"))
