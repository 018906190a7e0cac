"""Tensors of the ONNX graph while it is converted: how each lies in memory, and what is constant."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from onnxqat.deployment.litert.model import Array, Grid

Layout = tuple[int, ...]
"""Axes of the ONNX tensor in the order in which they lie in memory."""


@dataclasses.dataclass(frozen=True, eq=False)
class Value:
    """A tensor that the model computes.

    Attributes:
        number: of the tensor in the LiteRT model.
        shape: of the ONNX tensor.
        layout: see :data:`Layout`.
        grid: None for floats, integers and conditions; a tensor with one is int8, and means the dequantized values.
        dtype: numpy type of the values.
    """

    number: int
    shape: tuple[int, ...]
    layout: Layout
    grid: Grid | None
    dtype: np.dtype[np.generic]

    @property
    def stored(self) -> tuple[int, ...]:
        """The shape in memory."""
        return tuple(self.shape[axis] for axis in self.layout)

    def place(self, axis: int) -> int:
        """Position in memory of an axis of the ONNX tensor, which may be negative."""
        return self.layout.index(axis % len(self.shape))


@dataclasses.dataclass(frozen=True, eq=False)
class Constant:
    """A tensor that the file holds.

    Attributes:
        array: codes where there is a grid, else the values.
        grid: None where the values are no codes.
        name: of the ONNX tensor.
    """

    array: Array
    grid: Grid | None
    name: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return tuple(self.array.shape)

    @property
    def values(self) -> Array:
        """The values, dequantized where there is a grid."""
        if self.grid is None:
            return self.array
        along = [1] * self.array.ndim
        if self.grid.axis is not None:
            along[self.grid.axis] = -1
        scale, zero_point = self.grid.scale.reshape(along), self.grid.zero_point.reshape(along)
        if self.grid.axis is None:
            scale, zero_point = self.grid.scale[0], self.grid.zero_point[0]
        result: Array = ((self.array.astype(np.int64) - zero_point).astype(np.float32) * scale).astype(np.float32)
        return result


def channels_last(rank: int) -> Layout:
    """Layout of images: batch, places, channels; of what has less than three axes, as it is."""
    return tuple(range(rank)) if rank < 3 else (0, *range(2, rank), 1)


def plain(rank: int) -> Layout:
    """The layout of ONNX itself."""
    return tuple(range(rank))


def boundary_layout(rank: int) -> Layout:
    """Layout of the model's own inputs and outputs: images, which have four axes, are channels last."""
    return channels_last(rank) if rank == 4 else plain(rank)


def reshaped_layout(shape: Sequence[int], layout: Layout, target: Sequence[int]) -> Layout | None:
    """Layout of the tensor `target` that the same memory is after a reshape; None where numbers would have to move.

    Both shapes fall into the smallest runs of axes with the same number of elements. Where the axes of each run lie
    side by side and in order, runs keep their places.

    Args:
        shape: of the ONNX tensor.
        layout: how it lies.
        target: its new shape.
    """
    places = [axis for axis in layout if shape[axis] != 1]
    runs = _runs(shape, target)
    if runs is None:
        return None
    result: list[int] = []
    while places:
        run = next(run for run in runs if places[0] in run[0])
        axes = [axis for axis in run[0] if shape[axis] != 1]
        if places[: len(axes)] != axes:
            return None
        places = places[len(axes) :]
        result += run[1]
    rest = [axis for axis in range(len(target)) if axis not in result]  # axes of size 1 may lie anywhere
    for axis in rest:
        result.insert(result.index(axis - 1) + 1 if axis - 1 in result else 0, axis)
    return tuple(result)


def _runs(shape: Sequence[int], target: Sequence[int]) -> list[tuple[list[int], list[int]]] | None:
    """Axes of both shapes, those of size 1 left out, in the smallest runs of the same number of elements."""
    left = [axis for axis, size in enumerate(shape) if size != 1]
    right = [axis for axis, size in enumerate(target) if size != 1]
    if 0 in shape:
        return None
    runs: list[tuple[list[int], list[int]]] = []
    while left and right:
        run: tuple[list[int], list[int]] = ([left.pop(0)], [right.pop(0)])
        sizes = [shape[run[0][0]], target[run[1][0]]]
        while sizes[0] != sizes[1]:
            side = 0 if sizes[0] < sizes[1] else 1
            axes = (left, right)[side]
            if not axes:
                return None
            run[side].append(axes.pop(0))
            sizes[side] *= (shape, target)[side][run[side][-1]]
        runs.append(run)
    return None if left or right else runs


@dataclasses.dataclass(frozen=True, eq=False)
class Reshaped:
    """A reshape that was not written yet: a fully connected layer reads its weights in another order instead.

    Attributes:
        source: what is reshaped.
        shape: of the result.
        name: of the result.
    """

    source: Value
    shape: tuple[int, ...]
    name: str

    @property
    def grid(self) -> Grid | None:
        """That of what is reshaped."""
        return self.source.grid
