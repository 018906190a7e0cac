"""Base class of all observers: rows per channel, exact minimum and maximum, merging, parameters."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from onnxqat import numerics
from onnxqat.types import FloatArray, QParams, TensorSpec


class NonFiniteError(ValueError):
    """NaN or infinity among the observed values; whoever knows the tensor's name turns it into a DataError."""


def rows_of(x: npt.NDArray[Any], axis: int | None) -> npt.NDArray[Any]:
    """`x` as a matrix (C, values): one row for the whole tensor, or one a slice along `axis`.

    Raises:
        ValueError: `x` has no such axis.
    """
    if axis is None:
        return x.reshape(1, -1)
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"a tensor of shape {x.shape} has no channel axis {axis}")
    moved = np.moveaxis(x, axis, 0)
    return moved.reshape(len(moved), math.prod(moved.shape[1:]))


class BaseObserver(ABC):
    """Collects the range of one tensor over a stream of arrays, in memory that does not grow with the stream.

    The exact minimum and maximum are always kept; a subclass says which part of that range is worth covering.

    Attributes:
        spec: how the tensor is to be quantized.
        low, high: float32 exact minimum and maximum, shape (C,) (C is 1 per tensor); empty before any data.
        count: number of values seen a channel.
        depends_on_batches: the cut of the stream into batches and their order count, as for an average over batches.
    """

    depends_on_batches: ClassVar[bool] = False

    def __init__(self, spec: TensorSpec) -> None:
        self.spec = spec
        self.low: FloatArray = np.empty(0, np.float32)
        self.high: FloatArray = np.empty(0, np.float32)
        self.count = 0
        self._ranges: dict[Hashable, tuple[npt.NDArray[Any], npt.NDArray[Any]]] = {}
        self._joined: tuple[tuple[Hashable, ...], tuple[BaseObserver, ...], BaseObserver] | None = None

    def update(self, x: npt.NDArray[Any]) -> None:
        """Take in the values of `x`: any shape, float16, float32 or float64; an empty array changes nothing.

        Raises:
            NonFiniteError: `x` holds NaN or infinity (or a float64 beyond float32); nothing was taken in.
            ValueError: `x` lacks the channel axis, or has another number of channels than before.
        """
        x = np.asarray(x)
        if x.size == 0:
            return
        if x.dtype.kind != "f":
            raise ValueError(f"observers take floating point values, not {x.dtype}")
        rows = rows_of(x, self.spec.axis)
        with np.errstate(over="ignore"):
            low = np.asarray(rows.min(axis=1).astype(np.float32))
            high = np.asarray(rows.max(axis=1).astype(np.float32))
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise NonFiniteError("NaN or infinity among the observed values")
        self._ranges.clear()
        self._widen(low, high)
        self.count += rows.shape[1]
        self._accumulate(rows)

    def for_spec(self, spec: TensorSpec, *, own: bool = False) -> BaseObserver:
        """An observer of the same stream for `spec`: this one where it is for that already, unless `own` asks for a copy."""
        if self.spec == spec and not own:
            return self
        other = copy.deepcopy(self)
        other.spec = spec
        return other

    def merge(self, other: BaseObserver) -> None:
        """Merge `other` into this observer, as if one had seen both streams; `other` is not changed.

        Raises:
            ValueError: `other` is of another kind, grid or number of channels.
        """
        if type(other) is not type(self) or other.spec != self.spec:
            raise ValueError("only observers of the same kind and spec can be merged")
        if not other.count:
            return
        self._ranges.clear()
        self._widen(other.low, other.high)
        self.count += other.count
        self._absorb(other)

    def joined(self, others: Sequence[BaseObserver]) -> BaseObserver:
        """An observer of the streams of this one and of `others`, none of which is changed.

        It is kept until one of them changes: a plan is resolved many times, and its range takes a search.
        """
        parts = (self, *others)
        key = self._rule(), *((id(part), part.count) for part in parts)  # they are kept, so no id is used again
        if self._joined is None or self._joined[0] != key:
            self._joined = None
            merged = self.for_spec(self.spec, own=True)
            for other in others:
                merged.merge(other.for_spec(self.spec))
            self._joined = key, parts, merged
        return self._joined[2]

    def range(self) -> tuple[FloatArray, FloatArray]:
        """Low and high end of the range to cover, float32, shape () or (C,); a subset of the min-max range.

        Before any data: zeros of shape (), or of shape (0,) per channel.
        """
        if self.count:
            # Kept until further values come: a search takes some milliseconds, and a plan is resolved many times.
            key = self._rule()
            if key not in self._ranges:
                self._ranges[key] = self._clipped()
            low, high = self._ranges[key]
        else:
            low = high = np.zeros(1 if self.spec.axis is None else 0)
        low = np.asarray(low, np.float32)
        high = np.asarray(high, np.float32)
        return (low, high) if self.spec.axis is not None else (low[0:1].reshape(()), high[0:1].reshape(()))

    def qparams(self) -> QParams:
        """Quantization parameters that cover :meth:`range` on the grid of the spec."""
        low, high = self.range()
        return numerics.from_range(low, high, self.spec.but(scale_bits=self.scale_bits))

    @property
    def scale_bits(self) -> int | None:
        """Significant bits of scales, None for any; an observer may be stricter than its spec."""
        return self.spec.scale_bits

    def _rule(self) -> tuple[Hashable, ...]:
        """All that :meth:`range` depends on beside the values."""
        return type(self), self.spec

    def _widen(self, low: FloatArray, high: FloatArray) -> None:
        if not self.count:
            self.low, self.high = low.copy(), high.copy()
            return
        if low.shape != self.low.shape:
            raise ValueError(f"{low.size} channels where there were {self.low.size}")
        self.low, self.high = np.minimum(self.low, low), np.maximum(self.high, high)

    @abstractmethod
    def _accumulate(self, rows: npt.NDArray[Any]) -> None:
        """Take in `rows` (C, values), finite; `low`, `high` and `count` cover them already."""

    @abstractmethod
    def _absorb(self, other: BaseObserver) -> None:
        """Take in the state of `other`; `low`, `high` and `count` cover it already."""

    @abstractmethod
    def _clipped(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """The range to cover, shape (C,) each, once there are data."""
