"""Ranges of channels on calibration data, seen in one pass for all equalizations that want some."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat.calibration.runner import calibrate, watchers
from onnxqat.data.data import Data
from onnxqat.errors import DataError
from onnxqat.runtime import vendor_operators
from onnxqat.types import FloatArray, QType, TensorSpec

FEW = 64
"""Samples from which sizes of channels are told apart; more move them by little, and cost a pass each."""

ROWS, A_BATCH = 128, 64
"""Rows of a tensor that are kept, and of one batch: as many channels as a language model's, in half a megabyte each."""

Range = tuple[FloatArray, FloatArray]
"""Lowest and highest value of each channel, float32, shape (C,) each."""


class ChannelRanges:
    """Lowest and highest values of channels, by tensor name; the data are read when the first range is asked for.

    Args:
        model: the float model; rewriting it is told by :meth:`forget`.
        data: calibration data; None where there are none, or they can be read only once.
    """

    def __init__(self, model: ir.Model, data: Data | None) -> None:
        self._model, self._data = model, data
        self._wanted: dict[str, int] = {}
        self._every = False
        self._rows: dict[str, _Rows] = {}
        self._found: dict[str, Range] = {}

    @property
    def has_data(self) -> bool:
        """Check whether there are data to see ranges on."""
        return self._data is not None

    def want(self, tensors: Mapping[str, int], *, every_sample: bool = False, rows: bool = False) -> None:
        """Note that the channels of `tensors` will be asked for, along an axis each.

        Args:
            tensors: name to axis, which may be negative.
            every_sample: whether all data have to be seen; :data:`FEW` samples otherwise.
            rows: keep some values too.
        """
        self._wanted.update(tensors)
        self._every |= every_sample and bool(tensors)
        self._rows |= {name: _Rows(axis) for name, axis in tensors.items()} if rows else {}

    def of(self, names: Iterable[str]) -> dict[str, Range]:
        """Ranges of those of `names` that held a value; the first call sees all that are wanted."""
        names = list(names)
        if self._data is not None and any(name not in self._found for name in names):
            self._see(self._data if self._every else self._data.few(FEW))
        return {name: self._found[name] for name in names if name in self._found and self._found[name][0].size}

    def largest(self, names: Iterable[str]) -> dict[str, FloatArray]:
        """Largest absolute value of each channel, float32 (C,)."""
        return {name: np.maximum(-low, high) for name, (low, high) in self.of(names).items()}

    def rows(self, names: Iterable[str]) -> dict[str, FloatArray]:
        """Some values of all channels at one place each, float32 (R, C), R up to :data:`ROWS`, of what has rows."""
        found = self.of([name for name in names if name in self._rows])
        return {name: np.concatenate(self._rows[name].kept) for name in found}

    def forget(self, names: Iterable[str]) -> None:
        """Let go of the ranges and rows of tensors whose channels were scaled."""
        for name in names:
            self._found.pop(name, None)
            if name in self._rows:
                self._rows[name].kept.clear()

    def _see(self, data: Data) -> None:
        unseen = {name: axis for name, axis in self._wanted.items() if name not in self._found}
        specs = {
            name: TensorSpec(QType.of(8, signed=False), symmetric=False, granularity="channel", axis=axis)
            for name, axis in unseen.items()
        }
        watch = watchers({name: rows for name, rows in self._rows.items() if name in unseen})
        try:
            observers = calibrate(vendor_operators.runnable_part(self._model), specs, data, watch=watch)
        except DataError as error:
            if error.code != "data-non-finite":
                raise
            self._data = None  # calibration looks at the same tensors as a whole, and may take a mask of -inf
            return
        self._found |= {name: observer.range() for name, observer in observers.items()}


class _Rows:
    """Rows of a tensor along the axis of its channels, from all over each batch."""

    def __init__(self, axis: int) -> None:
        self._axis = axis
        self.kept: list[FloatArray] = []

    def update(self, values: npt.NDArray[Any]) -> None:
        left = ROWS - sum(map(len, self.kept))
        if left > 0 and values.size:
            rows = np.moveaxis(values, self._axis, -1).reshape(-1, values.shape[self._axis])
            count = min(left, A_BATCH)
            self.kept.append(rows[:: max(len(rows) // count, 1)][:count].astype(np.float32))


def spread(sizes: FloatArray) -> float:
    """The largest channel over the geometric mean of those that are not 0; 1 where there are none."""
    live = sizes[sizes > 0].astype(np.float64)
    return float(live.max() / np.exp(np.log(live).mean())) if live.size else 1.0
