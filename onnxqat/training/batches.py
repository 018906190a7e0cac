"""Training data as batches: arrays that are shuffled with a seed, or an iterable of batches that is taken as it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from onnxqat.errors import DataError, UsageError


@dataclasses.dataclass(frozen=True)
class Batch:
    """Inputs by ONNX name and the labels, None without."""

    inputs: dict[str, Tensor]
    labels: Tensor | None = None

    def to(self, device: torch.device) -> Batch:
        """The batch on `device`."""
        inputs = {name: value.to(device, non_blocking=True) for name, value in self.inputs.items()}
        return Batch(inputs, None if self.labels is None else self.labels.to(device, non_blocking=True))


class Batches(Protocol):
    """What the training loop reads."""

    @property
    def steps(self) -> int | None:
        """Batches an epoch; None when that is not known before."""

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of epoch `number`, counted from 0; the same ones each time it is asked for."""


class ArrayBatches:
    """Samples in arrays, shuffled anew each epoch; the order follows from seed and epoch alone.

    Args:
        inputs: arrays by input name, samples along axis 0.
        labels: array of the same length, or None.
        batch_size: samples a batch.
        seed: of the order.
        drop_last: leave out a last batch that is not full (for models with a fixed batch).

    Raises:
        DataError: ``data-missing``, ``data-shape``, ``data-labels``.
    """

    def __init__(
        self,
        inputs: Mapping[str, Any],
        labels: Any = None,
        *,
        batch_size: int,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        self.inputs = {name: _array(value) for name, value in inputs.items()}
        self.labels = None if labels is None else _array(labels)
        lengths = {name: len(value) if value.ndim else 0 for name, value in self.inputs.items()}
        self.samples = next(iter(lengths.values()), 0)
        if not self.samples:
            raise DataError("data-missing", "the training data has no samples")
        if len(set(lengths.values())) > 1:
            raise DataError("data-shape", f"the inputs have different numbers of samples: {lengths}")
        if self.labels is not None and len(self.labels) != self.samples:
            raise DataError("data-labels", f"there are {len(self.labels)} labels for {self.samples} samples")
        if batch_size < 1:
            raise UsageError("option-invalid", f"batch size {batch_size}; it must be at least 1")
        if drop_last and self.samples < batch_size:
            raise DataError("data-missing", f"{self.samples} samples are fewer than the model's batch of {batch_size}")
        self.batch_size, self.seed, self.drop_last = batch_size, seed, drop_last

    @property
    def steps(self) -> int:
        """Batches an epoch."""
        return self.samples // self.batch_size if self.drop_last else -(-self.samples // self.batch_size)

    def epoch(self, number: int) -> Iterator[Batch]:
        """Batches in the order of epoch `number`."""
        order = np.random.default_rng((self.seed, number)).permutation(self.samples)
        for step in range(self.steps):
            chosen = order[step * self.batch_size : (step + 1) * self.batch_size]
            inputs = {name: _tensor(value[chosen], name) for name, value in self.inputs.items()}
            yield Batch(inputs, None if self.labels is None else _tensor(self.labels[chosen], "labels"))


class IterableBatches:
    """An iterable that yields ``inputs`` or ``(inputs, labels)``, `inputs` being a mapping or a single array.

    It is started anew each epoch, so a generator serves one epoch only.

    Args:
        source: the iterable.
        input_names: names of the model's inputs, for single arrays.
    """

    def __init__(self, source: Iterable[Any], input_names: Sequence[str]) -> None:
        self.source, self.input_names = source, tuple(input_names)

    @property
    def steps(self) -> int | None:
        """Batches an epoch, where the iterable has a length."""
        return len(self.source) if isinstance(self.source, Sized) else None

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches as they come.

        Raises:
            DataError: ``data-missing`` when the iterable gives nothing, ``data-format``.
        """
        empty = True
        for item in self.source:
            empty = False
            yield self._batch(item)
        if empty:
            again = "the training data gave nothing when started again" if number else "the training data is empty"
            raise DataError("data-missing", again, hint="a generator is used up after one epoch; pass a list")

    def _batch(self, item: Any) -> Batch:
        inputs, labels = item if isinstance(item, (tuple, list)) and len(item) == 2 else (item, None)
        if not isinstance(inputs, Mapping):
            if len(self.input_names) != 1 or not hasattr(inputs, "shape"):
                raise DataError(
                    "data-format",
                    f"a batch is {type(inputs).__name__}; it must map the inputs {list(self.input_names)} to arrays",
                )
            inputs = {self.input_names[0]: inputs}
        tensors = {name: _tensor(value, name) for name, value in inputs.items()}
        return Batch(tensors, None if labels is None else _tensor(labels, "labels"))


def make(
    data: Any,
    labels: Any,
    *,
    input_names: Sequence[str],
    batch_size: int,
    seed: int,
    drop_last: bool = False,
) -> Batches:
    """Batches of `data`: an object with ``epoch`` and ``steps`` as it is, a mapping or an array as samples, else batches.

    Raises:
        DataError: ``data-missing``, ``data-shape``, ``data-labels``, ``data-format``, ``data-input-name``.
    """
    if hasattr(data, "epoch") and hasattr(data, "steps"):
        return data  # type: ignore[no-any-return]
    if isinstance(data, (np.ndarray, Tensor)):
        if len(input_names) != 1:
            raise DataError("data-input-name", f"one array for the inputs {list(input_names)}", hint="pass a mapping")
        data = {input_names[0]: data}
    if isinstance(data, Mapping):
        check_names(data, input_names)
        return ArrayBatches(data, labels, batch_size=batch_size, seed=seed, drop_last=drop_last)
    if labels is not None:
        raise UsageError("option-invalid", "labels go with arrays; an iterable yields (inputs, labels)")
    if not isinstance(data, Iterable):
        raise DataError("data-format", f"training data of type {type(data).__name__}")
    return IterableBatches(data, input_names)


def check_names(inputs: Mapping[str, Any], input_names: Sequence[str]) -> None:
    """Refuse a batch whose names are not those of the model's inputs.

    Raises:
        DataError: ``data-input-name``.
    """
    if set(inputs) != set(input_names):
        raise DataError("data-input-name", f"the data has inputs {sorted(inputs)}, the model {sorted(input_names)}")


def _array(value: Any) -> np.ndarray:
    return np.asarray(value.numpy(force=True) if isinstance(value, Tensor) else value)


def _tensor(value: Any, name: str) -> Tensor:
    """A tensor in torch's types for data: float64 becomes float32, other integers than int64 labels stay."""
    if not isinstance(value, Tensor):
        array = np.asarray(value)
        if array.dtype == object:
            raise DataError("data-format", f"{name!r} is not an array of numbers")
        value = torch.from_numpy(np.array(array, copy=True, order="C"))
    if value.dtype == torch.float64:
        value = value.to(torch.float32)
    if name == "labels" and not value.is_floating_point():
        value = value.to(torch.int64)
    if value.is_floating_point() and not bool(torch.isfinite(value).all()):
        raise DataError("data-non-finite", f"{name!r} has values that are not finite")
    return value
