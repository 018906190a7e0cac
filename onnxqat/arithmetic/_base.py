"""Base of arithmetics: the accumulator of sums, and the results that kernels compute from them."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterable
from typing import Literal, TypeAlias, get_args

from onnxqat.arithmetic import _rational
from onnxqat.arithmetic._arrays import Array, double, largest, where
from onnxqat.arithmetic._grid import Grid
from onnxqat.errors import CheckError, UsageError

Overflow: TypeAlias = Literal["wrap", "saturate", "error"]
WIDTHS = (16, 24, 32)
"""Bits that accumulators have."""

WIDE = 48
"""Bits of an accumulator for activations of 16 bits: TensorFlow Lite keeps their sums in int64, of which 48 are used."""


@dataclasses.dataclass(frozen=True)
class Accumulator:
    """Accumulator of a layer's sums.

    Attributes:
        bits: 16, 24 or 32; 48 for activations of 16 bits.
        overflow: treatment of a sum that needs more: ``wrap`` around, as two's complement does whatever the order of
            additions; ``saturate`` the whole sum, since saturated partial sums depend on their order; ``error``.
    """

    bits: int = 32
    overflow: Overflow = "wrap"

    def __post_init__(self) -> None:
        if self.bits not in (*WIDTHS, WIDE):
            raise UsageError("option-invalid", f"an accumulator of {self.bits} bits", hint="one of: 16, 24, 32, 48")
        if self.overflow not in get_args(Overflow):
            raise UsageError(
                "option-invalid",
                f"an accumulator that {self.overflow!r}",
                hint=f"one of: {', '.join(get_args(Overflow))}",
            )

    @property
    def largest(self) -> int:
        """The largest number that it holds."""
        return int(2 ** (self.bits - 1)) - 1

    def hold(self, total: Array, tensor: str, *, traced: bool = False) -> Array:
        """`total`, whole numbers in float, as the accumulator holds them.

        Args:
            total: sums of a layer.
            tensor: name of the tensor of the sums, for the error.
            traced: whether a graph is traced, so that the numbers are unknown; none of them is an error then.

        Raises:
            CheckError: ``accumulator-overflow``.
        """
        reached = self.largest if traced else largest(total)
        if reached <= self.largest and not traced:
            return total
        if self.overflow == "error" and not traced:
            raise CheckError(
                "accumulator-overflow",
                f"a sum of tensor {tensor!r} reaches {reached:.0f}, and {self.bits} bits hold {self.largest}",
                hint="a wider accumulator, or narrower weights: insert-qdq --weight-bits",
            )
        total = double(total)
        if self.overflow == "saturate":
            return total.clip(-self.largest - 1, self.largest)
        around = 2.0**self.bits
        wrapped = total % around
        return where(wrapped > self.largest, wrapped - around, wrapped)


class Arithmetic(abc.ABC):
    """The results of integer kernels. Everything is in *steps*, see :class:`Grid`; arrays are numpy's or torch's.

    Args:
        accumulator: of layers.
    """

    name: str
    has: frozenset[str] = frozenset()
    """Kernels that not every target has on integers: ``softmax``, ``padded-average``, ``conversion``."""

    def __init__(self, accumulator: Accumulator | None = None) -> None:
        self.accumulator = accumulator or Accumulator()

    @abc.abstractmethod
    def requantize(self, total: Array, activation: Array, weight: Array, output: Grid) -> Array:
        """Steps of a layer.

        Args:
            total: sum of products of steps, bias added, as :meth:`Accumulator.hold` gives it.
            activation: scale of the input, float32.
            weight: scales of the weight, of a shape that broadcasts with `total`.
            output: grid of the result.
        """

    def requantize_matrix(self, total: Array, activation: Array, weight: Array, output: Grid) -> Array:
        """Steps of a fully connected layer, whose kernel rounds as that of a convolution unless it is said here."""
        return self.requantize(total, activation, weight, output)

    def sigmoid(self, x: Array) -> Array:
        """The sigmoid of float32 values from which the kernel's table is made."""
        return _rational.sigmoid(x)

    def tanh(self, x: Array) -> Array:
        """The same of the hyperbolic tangent."""
        return _rational.tanh(x)

    @abc.abstractmethod
    def add(self, a: Array, b: Array, grid_a: Grid, grid_b: Grid, output: Grid) -> Array:
        """Steps of ``a + b``."""

    @abc.abstractmethod
    def multiply(self, a: Array, b: Array, grid_a: Grid, grid_b: Grid, output: Grid) -> Array:
        """Steps of ``a * b``."""

    @abc.abstractmethod
    def global_average(self, total: Array, count: int, grid: Grid, output: Grid) -> Array:
        """Steps of a mean over whole images.

        Args:
            total: sum of the steps of each image.
            count: number of steps in a sum.
            grid: of the input.
            output: of the result.
        """

    @abc.abstractmethod
    def average(self, places: Iterable[Array], count: Array | int, grid: Grid, output: Grid) -> Array:
        """Steps of means over windows.

        Args:
            places: steps, one array per position in the window, in the order of memory.
            count: positions per window; float32 per window where some lie outside of the image and do not count.
            grid: of the input.
            output: of the result.
        """

    def convert(self, x: Array, grid: Grid, output: Grid) -> Array:
        """Steps on another grid, of a tensor that two quantizers follow each other on.

        Raises:
            UsageError: ``option-invalid``: the arithmetic has none; those that do name ``conversion`` in `has`.
        """
        raise UsageError("option-invalid", f"the arithmetic {self.name!r} converts no codes")

    def softmax(self, x: Array, grid: Grid, output: Grid) -> Array:
        """Steps of ``softmax(x)`` along the last axis.

        Raises:
            UsageError: ``option-invalid``: the arithmetic has none; those that do name it in `has`.
        """
        raise UsageError("option-invalid", f"the arithmetic {self.name!r} has no softmax")
