"""Samples of a tensor: in memory while they are few, in a temporary file beyond that."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

MEMORY = 2**30
"""Bytes that one cache holds in memory."""


class Cache:
    """Batches of one tensor, all of the same shape.

    Args:
        batches: their number.
        folder: for the file of a cache that is larger than :data:`MEMORY`.
    """

    def __init__(self, batches: int, folder: Path) -> None:
        self._batches, self._folder = batches, folder
        self._data: npt.NDArray[Any] | None = None

    def __len__(self) -> int:
        return self._batches

    def store(self, index: int, batch: Tensor) -> None:
        """Keep batch number `index`."""
        values = batch.detach().cpu().numpy()
        if self._data is None:
            self._data = self._allocate((self._batches, *values.shape), values.dtype)
        self._data[index] = values

    def _allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        if int(np.prod(shape)) * dtype.itemsize <= MEMORY:
            return np.empty(shape, dtype)
        handle, path = tempfile.mkstemp(dir=self._folder)
        os.close(handle)
        return np.memmap(path, dtype, "w+", shape=shape)

    def batch(self, index: int, device: torch.device) -> Tensor:
        """Batch number `index`."""
        assert self._data is not None
        return torch.from_numpy(np.array(self._data[index])).to(device)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one batch."""
        assert self._data is not None
        return tuple(self._data.shape[1:])

    def samples(self, order: npt.NDArray[np.int64], device: torch.device) -> Tensor:
        """Samples by their number over all batches, along axis 0."""
        assert self._data is not None
        size = self._data.shape[1]
        return torch.from_numpy(self._data[order // size, order % size]).to(device)
