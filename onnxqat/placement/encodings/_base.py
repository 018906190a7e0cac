"""Encoding of one tensor, whatever file it comes from."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any

import numpy as np

from onnxqat import numerics
from onnxqat.types import FloatArray, IntArray, QParams, TensorSpec


@dataclasses.dataclass(frozen=True, eq=False)
class Encoding:
    """Scale and zero point of a tensor, or its range.

    Attributes:
        low: smallest value, float32, shape () or (C,); None where there is a scale.
        high: largest value, the same.
        scale: float32, shape () or (C,); None where there is a range.
        offset: zero point in unsigned codes, from 0 on, of the shape of the scale.
        bits: width of the codes; None where the file does not say.
    """

    low: FloatArray | None = None
    high: FloatArray | None = None
    scale: FloatArray | None = None
    offset: IntArray | None = None
    bits: int | None = None

    @property
    def channels(self) -> int | None:
        """Number of channels; None for one scale a tensor."""
        first = self.low if self.scale is None else self.scale
        assert first is not None
        return len(first) if first.ndim else None

    def qparams(self, spec: TensorSpec) -> QParams:
        """Parameters on the grid of `spec`, whose type and axis they have.

        Raises:
            ValueError: a scale that is none, or a zero point outside of the codes.
        """
        scheme = spec.but(axis=spec.axis if self.channels is not None else None, block_size=None)
        if self.scale is None:
            assert self.low is not None
            assert self.high is not None
            return numerics.from_range(self.low, self.high, scheme)
        offset = np.zeros(self.scale.shape, np.int64) if self.offset is None else self.offset
        # The same grid in signed codes: all of them are half the number of codes less.
        zero_point = offset - (2 ** (spec.qtype.bits - 1) if spec.qtype.signed else 0)
        if ((zero_point < spec.qtype.quant_min) | (zero_point > spec.qtype.quant_max)).any():
            raise ValueError(f"a zero point outside of the codes {spec.qtype.quant_min}..{spec.qtype.quant_max}")
        return QParams.of(self.scale, zero_point, scheme)


class BaseFormat(abc.ABC):
    """Format of a file of encodings."""

    @abc.abstractmethod
    def read(self, text: str, document: Any) -> dict[str, Encoding] | None:
        """Encodings by tensor name; None for a file of another format.

        Args:
            text: content of the file.
            document: its value as JSON; None where it is none.

        Raises:
            KeyError, TypeError, ValueError: an entry of this format that is incomplete.
        """


def ranged(low: Any, high: Any, bits: int | None) -> Encoding:
    """An encoding by its range: numbers, or lists with one for each channel."""
    return Encoding(np.asarray(low, np.float32), np.asarray(high, np.float32), bits=bits)


def scaled(scale: Any, offset: Any, bits: int | None) -> Encoding:
    """An encoding by its scale and unsigned zero point: numbers, or lists with one for each channel."""
    scales = np.asarray(scale, np.float32)
    return Encoding(scale=scales, offset=np.broadcast_to(np.asarray(offset, np.int64), scales.shape), bits=bits)


def one_or_more(values: list[Any]) -> Any:
    """The value of a list of one; the list of several channels."""
    return values[0] if len(values) == 1 else values
