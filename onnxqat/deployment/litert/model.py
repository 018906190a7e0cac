"""A LiteRT model before it is written: tensors, and operators in order of execution."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = "npt.NDArray[Any]"

Options: TypeAlias = "tuple[str, Mapping[str, int | float | bool]]"
"""Name of a table of the schema and the scalars in it."""

NO_OPTIONS: Options = ("", {})


@dataclasses.dataclass(frozen=True, eq=False)
class Grid:
    """Quantization parameters of a tensor.

    Attributes:
        scale: float32, a vector of one element or of one for each channel.
        zero_point: int64 of the same length.
        axis: of the channels, None where there is one scale.
    """

    scale: Array
    zero_point: Array
    axis: int | None = None

    def same(self, other: Grid) -> bool:
        """Check whether a code means the same value on both."""
        return (
            self.axis == other.axis
            and np.array_equal(self.scale, other.scale)
            and np.array_equal(self.zero_point, other.zero_point)
        )

    def moved(self, axis: int | None) -> Grid:
        """The grid of the same codes with the channels on another axis."""
        return dataclasses.replace(self, axis=None if self.axis is None else axis)

    def code(self, value: float) -> int:
        """The code of `value` on a grid with one scale, not saturated to any type."""
        return int(np.round(np.float32(value) / self.scale[0])) + int(self.zero_point[0])


def single_grid(scale: float, zero_point: int) -> Grid:
    """A grid with one scale."""
    return Grid(np.array([scale], np.float32), np.array([zero_point], np.int64))


@dataclasses.dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor as it lies in memory.

    Attributes:
        name: of the tensor.
        shape: sizes, all known.
        dtype: numpy type.
        grid: None where the numbers are not codes.
        data: of a constant.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    grid: Grid | None = None
    data: Array | None = None


@dataclasses.dataclass(frozen=True)
class Operator:
    """A builtin operator.

    Attributes:
        code: name in the schema's ``BuiltinOperator``.
        inputs: numbers of tensors, -1 for one that is left out.
        outputs: numbers of tensors.
        options: see :data:`Options`.
    """

    code: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Options = NO_OPTIONS


@dataclasses.dataclass(frozen=True)
class Model:
    """One subgraph with its signature.

    Attributes:
        tensors: all tensors.
        operators: in order of execution.
        inputs: numbers of tensors, with the names that the signature has for them.
        outputs: the same.
        description: text in the file.
    """

    tensors: Sequence[Tensor]
    operators: Sequence[Operator]
    inputs: Sequence[tuple[str, int]]
    outputs: Sequence[tuple[str, int]]
    description: str
