"""Linear Resize of images: two neighbours along each of the two last axes, weighted by whole numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxqat.integer_functions.definition import Bounds, Call, CodeGrid, Constants, IntegerFunction, as_constants
from onnxqat.integer_functions.operations import Integers, Operations
from onnxqat.integer_functions.requantization import factor_bounds, factor_constants

COORDINATES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric")
"""Values of ``coordinate_transformation_mode`` that say where a result lies in the image without a region of it."""

LONGEST = 1 << 16
"""Most rows or columns of an image."""

KEPT_BITS = 8
"""Bits of a code's fraction that are left in front of the multiplier."""


@dataclasses.dataclass(frozen=True, eq=False)
class Samples:
    """Neighbours of each result along one axis.

    Attributes:
        first: indices of those in front, int64.
        second: indices of those behind, the same at an edge.
        share: of those behind, from 0 to 1.
    """

    first: npt.NDArray[np.int64]
    second: npt.NDArray[np.int64]
    share: npt.NDArray[np.float64]


def samples(call: Call) -> tuple[Samples, Samples]:
    """Neighbours along the rows and along the columns, as ONNX's Resize has them.

    Args:
        call: with attributes ``coordinate_transformation_mode``, ``lengths`` and ``sizes`` of the two axes before and
            behind, and ``scales``.

    Raises:
        ValueError: an attribute is missing, or a size is not one of an image.
    """
    kind = call.attributes.get("coordinate_transformation_mode")
    given = [call.attributes.get(name) or () for name in ("lengths", "sizes", "scales")]
    if kind not in COORDINATES or any(len(each) != 2 for each in given):
        raise ValueError("it does not say how an image is resized")
    rows, columns = (_along(str(kind), *axis) for axis in zip(*given, strict=True))
    return rows, columns


def _along(kind: str, length: int, size: int, scale: float) -> Samples:
    if not (0 < length <= LONGEST and 0 < size <= LONGEST and scale > 0):
        raise ValueError(f"an axis of {length} elements becomes one of {size}, and at most {LONGEST} are resized")
    places = np.arange(size, dtype=np.float64)
    position = (places + 0.5) / scale - 0.5  # half_pixel
    if kind == "asymmetric":
        position = places / scale
    elif kind == "align_corners":
        position = places * (length - 1) / max(size - 1, 1)
    elif kind == "pytorch_half_pixel" and size == 1:
        position = np.zeros(1)
    elif kind == "half_pixel_symmetric":
        position += length / 2 * (1 - size / (scale * length))
    position = position.clip(0, length - 1)
    first = np.floor(position).astype(np.int64)
    return Samples(first, np.minimum(first + 1, length - 1), position - first)


class Function(IntegerFunction):
    """A linear Resize of the two last axes.

    Codes are counted from the smallest, so that no stage is negative. The shares of neighbours are whole numbers of 11
    bits, or 14 of long codes: those of an upsampling by a power of two are exact.
    """

    operator = "Resize"
    mode = "linear"
    rows = True
    has_axis = False
    since = 11
    attributes = ("coordinate_transformation_mode", "lengths", "sizes", "scales")

    @property
    def _share_bits(self) -> int:
        return 14 if self.is_wide else 11

    @property
    def _bits(self) -> int:
        return 29 if self.is_wide else 22

    @classmethod
    def axes_of(cls, attributes: Mapping[str, Any], rank: int | None) -> tuple[int, ...]:
        """See the base class."""
        del attributes
        return (-2, -1) if rank == 4 else ()

    def float_form(self, attributes: Mapping[str, Any]) -> tuple[dict[str, Any], list[npt.NDArray[Any] | None]]:
        """See the base class: the operator's own scales are its third input."""
        kept = {name: attributes[name] for name in self.attributes[:1] if name in attributes}
        scales = np.asarray([1.0, 1.0, *(attributes.get("scales") or (1.0, 1.0))], np.float32)
        return {"mode": self.mode, **kept}, [None, scales]

    def bounds(self) -> Bounds:
        """See the base class."""
        places = {
            f"{name}_{part}": (0, 1 << self._share_bits) if part == "share" else (0, LONGEST - 1)
            for name in ("rows", "columns")
            for part in ("first", "second", "share")
        }
        return {
            **places,
            "x_zero_point": self.range_of_codes,
            **factor_bounds(self._bits),
            "y_zero_point": self.range_of_result,
        }

    def constants(self, x: CodeGrid, y: CodeGrid, call: Call) -> Constants:
        """See the base class.

        Raises:
            ValueError: see :func:`samples`.
        """
        found: dict[str, Any] = {}
        for name, along in zip(("rows", "columns"), samples(call), strict=True):
            found |= {f"{name}_first": along.first, f"{name}_second": along.second, f"{name}_share": self._whole(along)}
        found["x_zero_point"] = x.zero_point
        found |= factor_constants(x.scale / y.scale * 2.0**-KEPT_BITS, self._bits)
        found["y_zero_point"] = y.zero_point
        return as_constants(found)

    def _whole(self, along: Samples) -> npt.NDArray[np.int64]:
        return np.rint(along.share * (1 << self._share_bits)).astype(np.int64)

    def formula(self, do: Operations, q: Integers, c: Mapping[str, Integers]) -> Integers:
        """See the base class."""
        low, _ = self.range_of_codes
        found, most, whole = q - low, self.span_of_codes, 1 << self._share_bits
        for name, axis in (("rows", -2), ("columns", -1)):
            share = do.along(c[f"{name}_share"], axis)
            first, second = (do.gathered(found, c[f"{name}_{part}"], axis) for part in ("first", "second"))
            most *= whole
            # Both shares add up to the whole, so that a mean is no larger than what it is made of.
            found = do.limited(do.stage(name, first * (whole - share) + second * share), 0, most)
        mean = do.rounded(found, 2 * self._share_bits - KEPT_BITS)
        steps = do.stage("mean", (mean - do.scaled_up(c["x_zero_point"] - low, KEPT_BITS)) * c["y_multiplier"])
        return do.limited(do.rounded(steps, c["y_shift"]) + c["y_zero_point"], *self.range_of_result)

    def reference(self, values: npt.NDArray[np.float64], call: Call) -> npt.NDArray[np.float64]:
        """See the base class."""
        rows, columns = samples(call)
        share = rows.share[:, None]
        found = values[..., rows.first, :] * (1 - share) + values[..., rows.second, :] * share
        return np.asarray(found[..., columns.first] * (1 - columns.share) + found[..., columns.second] * columns.share)

    def error_bound(self, x: CodeGrid, y: CodeGrid, call: Call) -> float:
        """See the base class: half a step, the rounded shares, the bits that are kept, and the multiplier."""
        span = self.span_of_codes * x.scale
        shares = sum(
            float(np.abs(along.share - self._whole(along) / (1 << self._share_bits)).max()) for along in samples(call)
        )
        found = self.constants(x, y, call)
        exact = x.scale / y.scale * 2.0 ** (int(found["y_shift"]) - KEPT_BITS)
        multiplier = abs(exact - int(found["y_multiplier"])) / exact
        return 0.5 * y.scale + span * (shares + multiplier) + x.scale * 2.0 ** -(KEPT_BITS + 1)
