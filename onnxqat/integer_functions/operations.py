"""Operations that formulas of integer functions are written in, computed on arrays of numpy and torch.

A formula also uses ``+``, ``-`` and ``*``. :mod:`onnxqat.integer_functions.tracing` has the same operations on symbols
and writes them down as nodes of ONNX.
"""

from __future__ import annotations

import abc
import dataclasses
import math
import sys
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

Integers: TypeAlias = Any
"""int64 arrays of numpy or torch, or symbols that stand for tensors of a graph."""


@dataclasses.dataclass(frozen=True)
class Runs:
    """Direction of a running sum along a row, and whether it has the element itself.

    Attributes:
        exclusive: whether the element itself is left out.
        reverse: whether it begins at the end.
    """

    exclusive: bool = False
    reverse: bool = False


class Operations(abc.ABC):
    """Operations that a formula may use on whole numbers.

    Args:
        axes: the axes along which rows lie.
        keeps_axes: keep them with length 1 in a result of rows; otherwise they are dropped.
        groups: of channels that are a row together, for those that divide into groups.
        runs: direction of running sums, and whether they have the element itself.
    """

    def __init__(
        self, axes: Sequence[int] = (-1,), *, keeps_axes: bool = True, groups: int = 1, runs: Runs | None = None
    ) -> None:
        self.axes, self.keeps_axes, self.groups = tuple(axes), keeps_axes, groups
        self.runs = runs or Runs()

    @abc.abstractmethod
    def shifted(self, x: Integers, by: Integers) -> Integers:
        """``floor(x / 2**by)`` for `by` from 0 to 62, of negative numbers too."""

    @abc.abstractmethod
    def scaled_up(self, x: Integers, by: Integers) -> Integers:
        """``x * 2**by`` of an `x` that is not negative."""

    @abc.abstractmethod
    def remainder(self, x: Integers, divisor: int) -> Integers:
        """``x mod divisor``, from 0 to ``divisor - 1``."""

    @abc.abstractmethod
    def divided(self, x: Integers, divisor: Integers) -> Integers:
        """``floor(x / divisor)`` of an `x` that is not negative and a `divisor` above 0."""

    @abc.abstractmethod
    def limited(self, x: Integers, low: int, high: int) -> Integers:
        """`x` between `low` and `high`."""

    @abc.abstractmethod
    def smaller(self, x: Integers, y: Integers) -> Integers:
        """The smaller of two numbers."""

    @abc.abstractmethod
    def larger(self, x: Integers, y: Integers) -> Integers:
        """The larger of two numbers."""

    @abc.abstractmethod
    def magnitude(self, x: Integers) -> Integers:
        """``abs(x)``."""

    @abc.abstractmethod
    def is_less(self, x: Integers, y: Integers) -> Integers:
        """Condition ``x < y``."""

    @abc.abstractmethod
    def where(self, condition: Integers, x: Integers, y: Integers) -> Integers:
        """`x` where `condition` holds, else `y`."""

    @abc.abstractmethod
    def looked_up(self, table: Integers, places: Integers) -> Integers:
        """Elements of the one-dimensional `table` at `places`, which are inside of it."""

    @abc.abstractmethod
    def gathered(self, x: Integers, places: Integers, axis: int) -> Integers:
        """Elements of `x` at the one-dimensional `places` along `axis`, which is counted from the last."""

    @abc.abstractmethod
    def along(self, x: Integers, axis: int) -> Integers:
        """The one-dimensional `x` as a tensor that broadcasts along `axis`, which is counted from the last."""

    @abc.abstractmethod
    def constant_table(self, entries: Sequence[int], like: Integers) -> Integers:
        """A one-dimensional table that is part of the formula."""

    @abc.abstractmethod
    def entries_not_above(self, entries: Sequence[int], x: Integers) -> Integers:
        """Return how many of `entries`, which rise, are at most `x`."""

    @abc.abstractmethod
    def elements_of_row(self, x: Integers, longest: int) -> Integers:
        """Return the number of elements along the axes, from 1 to `longest`."""

    @abc.abstractmethod
    def largest_of_row(self, x: Integers) -> Integers:
        """The largest number along the axes, which are kept with length 1."""

    @abc.abstractmethod
    def row_sum(self, x: Integers, longest: int) -> Integers:
        """The sum along the axes, which are kept with length 1; rows have at most `longest` elements."""

    @abc.abstractmethod
    def reduced_sum(self, x: Integers, longest: int) -> Integers:
        """The sum of :meth:`row_sum`, with the axes kept or dropped as the call says."""

    @abc.abstractmethod
    def running_sum(self, x: Integers, longest: int) -> Integers:
        """The sums along the one axis up to each element, as the call's ``exclusive`` and ``reverse`` say."""

    @abc.abstractmethod
    def grouped(self, x: Integers) -> Integers:
        """`x` with a group in place of its channels, and all of a group along the first of the axes behind."""

    @abc.abstractmethod
    def shaped_like(self, x: Integers, y: Integers) -> Integers:
        """`x` in the shape of `y`."""

    def stage(self, name: str, x: Integers) -> Integers:
        """Note that `x` is an intermediate result called `name`; gives `x`."""
        del name
        return x

    def rounded(self, x: Integers, by: Integers) -> Integers:
        """``x / 2**by`` rounded to the nearest whole number, ties upwards; `by` is at least 1."""
        # Adding half of 2**by in front of one shift would need by bits more, and by is up to 62.
        return self.shifted(self.shifted(x, by - 1) + 1, 1)


class ArrayOperations(Operations):
    """Operations on int64 arrays of numpy, or of torch on any device."""

    def shifted(self, x: Integers, by: Integers) -> Integers:
        """See the base class."""
        return x >> by

    def scaled_up(self, x: Integers, by: Integers) -> Integers:
        """See the base class."""
        return x << by

    def remainder(self, x: Integers, divisor: int) -> Integers:
        """See the base class."""
        return x % divisor

    def divided(self, x: Integers, divisor: Integers) -> Integers:
        """See the base class."""
        return x // divisor

    def limited(self, x: Integers, low: int, high: int) -> Integers:
        """See the base class."""
        return x.clip(low, high)

    def smaller(self, x: Integers, y: Integers) -> Integers:
        """See the base class."""
        return self.where(x < y, x, y)

    def larger(self, x: Integers, y: Integers) -> Integers:
        """See the base class."""
        return self.where(x < y, y, x)

    def magnitude(self, x: Integers) -> Integers:
        """See the base class."""
        return abs(x)

    def is_less(self, x: Integers, y: Integers) -> Integers:
        """See the base class."""
        return x < y

    def where(self, condition: Integers, x: Integers, y: Integers) -> Integers:
        """See the base class."""
        return _library(condition).where(condition, x, y)

    def looked_up(self, table: Integers, places: Integers) -> Integers:
        """See the base class."""
        return table[places]

    def gathered(self, x: Integers, places: Integers, axis: int) -> Integers:
        """See the base class."""
        return x.take(places, axis) if _library(x) is np else x.index_select(axis, places)

    def along(self, x: Integers, axis: int) -> Integers:
        """See the base class."""
        return x.reshape(-1, *(1 for _ in range(-1 - axis)))

    def constant_table(self, entries: Sequence[int], like: Integers) -> Integers:
        """See the base class."""
        if _library(like) is np:
            return np.asarray(entries, np.int64)
        return like.new_tensor(entries)

    def entries_not_above(self, entries: Sequence[int], x: Integers) -> Integers:
        """See the base class."""
        table = self.constant_table(entries, x)
        if _library(x) is np:
            return np.searchsorted(table, x, side="right")
        return _library(x).searchsorted(table, x, right=True)

    def elements_of_row(self, x: Integers, longest: int) -> Integers:
        """See the base class."""
        del longest
        return math.prod(x.shape[axis] for axis in self.axes)

    def largest_of_row(self, x: Integers) -> Integers:
        """See the base class."""
        return x.max(axis=self.axes, keepdims=True) if _library(x) is np else x.amax(self.axes, keepdim=True)

    def row_sum(self, x: Integers, longest: int) -> Integers:
        """See the base class."""
        del longest
        return x.sum(axis=self.axes, keepdims=True)

    def reduced_sum(self, x: Integers, longest: int) -> Integers:
        """See the base class."""
        return x.sum(axis=self.axes, keepdims=self.keeps_axes)

    def running_sum(self, x: Integers, longest: int) -> Integers:
        """See the base class."""
        del longest
        (axis,) = self.axes
        # From the end, the sum up to an element is what the whole has beyond the sum in front of it.
        total = x.cumsum(axis)
        if self.runs.reverse:
            total = x.sum(axis=self.axes, keepdims=True) - total + x
        return total - x if self.runs.exclusive else total

    def grouped(self, x: Integers) -> Integers:
        """See the base class."""
        return x.reshape(x.shape[0], self.groups, -1, *(1 for _ in self.axes[1:]))

    def shaped_like(self, x: Integers, y: Integers) -> Integers:
        """See the base class."""
        return x.reshape(y.shape)


def _library(x: Integers) -> Any:
    return np if isinstance(x, (np.ndarray, np.generic)) else sys.modules["torch"]
