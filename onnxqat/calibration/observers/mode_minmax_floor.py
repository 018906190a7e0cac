"""Power-of-two scales by majority (MQBench's ``ModeMinMaxFloorObserver``): each batch votes."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxqat.calibration.observers import minmax_floor
from onnxqat.calibration.observers._base import BaseObserver
from onnxqat.calibration.observers._scaled import Floats, with_scale
from onnxqat.types import IntArray, TensorSpec

LOWEST, HIGHEST = -130, 130
"""Exponents that can be voted for; float32 has no others."""


class Observer(BaseObserver):
    """The power of two that ``minmax_floor`` finds for most batches, each alone; of equals the larger."""

    depends_on_batches = True

    def __init__(self, spec: TensorSpec) -> None:
        super().__init__(spec)
        self._votes: IntArray = np.zeros((1, HIGHEST - LOWEST + 1), np.int64)

    @property
    def scale_bits(self) -> int | None:
        """One: powers of two."""
        return 1

    def _accumulate(self, rows: npt.NDArray[Any]) -> None:
        spec = dataclasses.replace(self.spec, granularity="channel", axis=0, block_size=None)
        of_batch = minmax_floor.Observer(spec)
        of_batch.update(rows)
        votes = np.zeros((len(rows), HIGHEST - LOWEST + 1), np.int64)
        chosen = np.clip(of_batch.exponents(), LOWEST, HIGHEST) - LOWEST
        # A batch of zeros has no opinion.
        votes[np.arange(len(rows)), chosen] = rows.any(axis=1)
        self._votes = self._votes + votes

    def _absorb(self, other: BaseObserver) -> None:
        assert isinstance(other, Observer)
        self._votes = self._votes + other._votes  # noqa: SLF001 - of the same class

    def _clipped(self) -> tuple[Floats, Floats]:
        last = self._votes.shape[1] - 1
        exponents = last - np.argmax(self._votes[:, ::-1], axis=1) + LOWEST
        scale = np.ldexp(minmax_floor.INSIDE, exponents.astype(np.int32))
        return with_scale(self.low, self.high, self.spec, scale)
