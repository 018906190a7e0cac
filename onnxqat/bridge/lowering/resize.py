"""Resize (ONNX versions 10 to 19) and Upsample (7 to 10), axis by axis, positions in float32 as in onnxruntime.

Integers are interpolated as floats, then rounded half to even and saturated, as ONNX's reference does (onnxruntime
cuts them). With ``align_corners`` and a scale that gives no whole number of elements, the last position is that of the
fraction, as the standard's tests say (onnxruntime takes the whole number).
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import onnx_ir as ir
import torch
from torch.nn import functional

from onnxqat.bridge.functional import shape_math
from onnxqat.bridge.importing.builder import Lowered, NodeView
from onnxqat.bridge.importing.values import Number

MODES = ("nearest", "linear", "cubic")
COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
)
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
# onnxruntime takes what is this close to halfway between two elements for a tie: it is so but for rounding.
NEARLY_HALFWAY = 1e-6
POLICIES = ("stretch", "not_larger", "not_smaller")


@dataclasses.dataclass(frozen=True)
class Sampling:
    """Options of a resampling."""

    mode: str
    coordinates: str
    nearest: str = "round_prefer_floor"
    cubic: float = -0.75
    exclude_outside: bool = False
    extrapolation: float = 0.0
    antialias: bool = False
    policy: str = "stretch"


def source_coordinates(
    how: Sampling,
    out: Any,
    size: Any,
    scale: Any,
    length: Any,
    region: tuple[float, float] | None,
    places: torch.Tensor,
) -> torch.Tensor:
    """Position in the input, of `size` elements, for each of `out` elements.

    `length` is what `out` was before it was rounded; `places` are the numbers from 0 to `out` - 1.
    """
    kind = how.coordinates
    result: torch.Tensor = (places + 0.5) / scale - 0.5  # half_pixel
    if kind == "asymmetric":
        result = places / scale
    elif kind == "tf_half_pixel_for_nn":
        result = (places + 0.5) / scale
    elif kind == "align_corners":
        result = places * (size - 1) / (length - 1) if length != 1 else torch.zeros_like(places)
    elif kind == "tf_crop_and_resize" and region is not None:
        start, end = region
        middle = 0.5 * (start + end) * (size - 1)
        step = (end - start) * (size - 1) / (length - 1) if length != 1 else 0.0
        result = start * (size - 1) + places * step if length != 1 else torch.full_like(places, middle)
    elif kind == "pytorch_half_pixel" and out <= 1:
        result = torch.zeros_like(places)
    elif kind == "half_pixel_symmetric":
        # In onnxruntime's order and precision, so that ties of the nearest element fall the same way.
        one = torch.ones((), dtype=places.dtype, device=places.device)
        offset = size / 2 * (1 - (one * out) / (one * scale * size))
        result = (offset + (places.to(torch.float64) + 0.5) / scale - 0.5).to(places.dtype)
    return result


def nearest_index(x: torch.Tensor, rule: str, scale: Any) -> torch.Tensor:
    """Round positions `x` to the indices of their elements by `rule`, ``nearest_mode`` of Resize."""
    if rule == "floor" or (rule == "simple" and scale >= 1):
        return torch.floor(x)
    if rule in ("ceil", "simple"):
        return torch.ceil(x)
    wide = x.to(torch.float64)
    if rule == "round_prefer_floor":
        return torch.ceil(wide - (0.5 + NEARLY_HALFWAY))
    return torch.floor(wide + (0.5 + NEARLY_HALFWAY))


def kernel(distance: torch.Tensor, how: Sampling) -> torch.Tensor:
    """Weight of an element at a distance from the position, up to 1 (linear) or 2 (cubic) away."""
    x = distance.abs()
    if how.mode == "linear":
        return (1 - x).clamp(min=0)
    a = how.cubic
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return torch.where(x <= 1, near, torch.where(x < 2, far, torch.zeros_like(x)))


def taps(position: torch.Tensor, scale: Any, how: Sampling) -> tuple[torch.Tensor, torch.Tensor]:
    """The elements that each position is computed from, and their weights: both (positions, taps).

    Antialiasing widens the kernel where the input shrinks.
    """
    stretch = shape_math.minimum(scale, 1.0) if how.antialias else 1.0
    reach = math.ceil((1 if how.mode == "linear" else 2) / stretch)
    offsets = torch.arange(1 - reach, reach + 1, device=position.device)
    index = (torch.ceil(position) - 1).unsqueeze(1) + offsets
    weight = kernel((index - position.unsqueeze(1)) * stretch, how)
    return index, weight / weight.sum(1, keepdim=True) if how.antialias else weight


def resample_axis(
    x: torch.Tensor,
    axis: int,
    out: Any,
    scale: Any,
    length: Any,
    how: Sampling,
    region: tuple[float, float] | None = None,
) -> torch.Tensor:
    """Resample one axis to `out` elements; `x` holds floats unless the mode is ``nearest``."""
    last = x.shape[axis] - 1
    places = torch.arange(out, device=x.device, dtype=torch.float64 if x.dtype is torch.float64 else torch.float32)
    position = source_coordinates(how, out, last + 1, scale, length, region, places)
    if how.mode == "nearest":
        index = nearest_index(position, how.nearest, scale).to(torch.int64).clamp(0, last)
        result = x.index_select(axis, index)
    else:
        result = _interpolate(x, axis, *taps(position, scale, how), how.exclude_outside)
    if how.coordinates == "tf_crop_and_resize":
        shape = [1] * x.dim()
        shape[axis] = -1
        outside = ((position < 0) | (position > last)).reshape(shape)
        result = torch.where(outside, torch.full_like(result, how.extrapolation), result)
    return result


def _interpolate(
    x: torch.Tensor, axis: int, index: torch.Tensor, weight: torch.Tensor, exclude_outside: bool
) -> torch.Tensor:
    last = x.shape[axis] - 1
    if exclude_outside:
        weight = torch.where((index >= 0) & (index <= last), weight, torch.zeros_like(weight))
        total = weight.sum(1, keepdim=True)
        weight = weight / torch.where(total == 0, torch.ones_like(total), total)
    neighbours = x.index_select(axis, index.to(torch.int64).clamp(0, last).reshape(-1))
    neighbours = neighbours.reshape([*x.shape[:axis], *weight.shape, *x.shape[axis + 1 :]])
    shape = [1] * (x.dim() + 1)
    shape[axis], shape[axis + 1] = weight.shape
    return (neighbours * weight.to(x.dtype).reshape(shape)).sum(axis + 1)


def scaled_size(size: Any, scale: Any) -> Any:
    """``floor(size * scale)``, the product in float32."""
    if isinstance(size, int) and isinstance(scale, float):
        # Dekker's splitting leaves the upper 24 bits; torch.compile, where a symbol looks like an int, can follow it.
        product = size * scale
        shifted = product * (2**29 + 1)
        return math.floor(shifted - (shifted - product))
    return shape_math.to_int(math.floor(size * scale))


def ratio(out: Any, size: Any, dtype: torch.dtype) -> Any:
    """The scale that makes `out` elements of `size`, in float32 unless `dtype` is float64."""
    return (
        out / size if dtype is torch.float64 else shape_math.divide(shape_math.to_float(out), shape_math.to_float(size))
    )


def proportional_sizes(x: torch.Tensor, axes: list[int], sizes: Any, policy: str) -> tuple[list[Any], Any]:
    """Sizes that keep the aspect ratio: none larger, or none smaller, than stated; and the scale of all axes."""
    ratios = [shape_math.to_float(size) / x.shape[axis] for size, axis in zip(sizes, axes, strict=True)]
    scale = ratios[0]
    for other in ratios[1:]:
        scale = shape_math.minimum(scale, other) if policy == "not_larger" else shape_math.maximum(scale, other)
    return [shape_math.to_int(math.floor(scale * x.shape[axis] + 0.5)) for axis in axes], scale


def resample(
    x: torch.Tensor, axes: list[int], sizes: Any, scales: Any, options: tuple[Any, ...], roi: list[float] | None
) -> torch.Tensor:
    """Resample `axes` one after another, the last axis first; `options` are the fields of :class:`Sampling`."""
    how, dtype, common = Sampling(*options), x.dtype, None
    if sizes is not None and how.policy != "stretch":
        sizes, common = proportional_sizes(x, axes, sizes, how.policy)
    if how.mode != "nearest":
        x = x.to(torch.float32 if dtype in (torch.float16, torch.bfloat16, torch.float32) else torch.float64)
    for position in reversed(range(len(axes))):
        axis = axes[position]
        size = x.shape[axis]
        if sizes is not None:
            out = sizes[position]
            scale = ratio(out, size, x.dtype) if common is None else common
            length = out if common is None else size * scale
        else:
            scale = scales[position]
            out = scaled_size(size, scale)
            length = size * scale
        region = None if roi is None else (roi[position], roi[position + len(axes)])
        if out == size and how.coordinates != "tf_crop_and_resize" and scale == 1:
            continue
        x = resample_axis(x, axis, out, scale, length, how, region)
    if x.dtype is dtype:
        return x
    if not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        x = torch.round(x).clamp(limits.min, limits.max)
    return x.to(dtype)


def resize(n: NodeView) -> Lowered:
    """Resize 10 to 19; version 10 reads like Upsample."""
    if n.opset < 11:
        return upsample(n)
    how = Sampling(
        _choice(n, "mode", MODES),
        _choice(n, "coordinate_transformation_mode", COORDINATES),
        _choice(n, "nearest_mode", NEAREST),
        n.attr("cubic_coeff_a", -0.75),
        bool(n.attr("exclude_outside", 0)),
        n.attr("extrapolation_value", 0.0),
        bool(n.attr("antialias", 0)),
        _choice(n, "keep_aspect_ratio_policy", POLICIES),
    )
    if how.antialias and how.mode == "nearest":
        raise n.refuse("antialias of mode nearest")
    if how.mode != "nearest" and n.dtype(0) is ir.DataType.BOOL:
        raise n.refuse(f"mode {how.mode} of booleans")
    axes: list[int] | None = n.attr("axes")
    scales = _optional_numbers(n, 2)
    sizes = _optional_numbers(n, 3)
    roi = _optional_numbers(n, 1) if how.coordinates == "tf_crop_and_resize" else None
    if scales is None and sizes is None:
        raise n.refuse("neither scales nor sizes")
    if how.coordinates == "tf_crop_and_resize" and roi is None:
        raise n.refuse("tf_crop_and_resize without roi")
    return _emit(n, axes, sizes, scales, how, roi)


def _choice(n: NodeView, name: str, allowed: tuple[str, ...]) -> str:
    """An attribute that is one of `allowed`, by default the first."""
    found = str(n.attr(name, allowed[0]))
    if found not in allowed:
        raise n.refuse(f"{name} {found}")
    return found


def upsample(n: NodeView) -> Lowered:
    """Upsample 7 to 10."""
    mode = n.attr("mode", "nearest")
    if mode not in ("nearest", "linear", "bilinear"):
        raise n.refuse(f"mode {mode}")
    scales: Any = n.attr("scales") if n.opset < 9 else _optional_numbers(n, 1)
    return _emit(n, None, None, scales, Sampling(mode.removeprefix("bi"), "asymmetric", "simple"), None)


def _optional_numbers(n: NodeView, index: int) -> Any:
    if not n.has(index) or n.dims(index) == (0,):
        return None
    if n.is_float(index):
        found = n.floats(index)
        return [float(f) if isinstance(f, float) else f for f in found] if isinstance(found, list) else found
    return n.ints(index)


def _emit(n: NodeView, axes: list[int] | None, sizes: Any, scales: Any, how: Sampling, roi: Any) -> Lowered:
    """Lower a resize over the axes that change, by torch's `interpolate` where that gives the same numbers."""
    given = sizes if sizes is not None else scales
    rank = n.rank(0)
    if axes is None:
        count = len(given) if isinstance(given, list) else rank
        if count is None:
            raise n.refuse("an unknown rank")
        axes = list(range(count))
    elif rank is not None:
        axes = [a % rank for a in axes]
    if not isinstance(given, list) or (roi is not None and not isinstance(roi, list)):
        return n.call(resample, n.tensor(0), axes, sizes, scales, dataclasses.astuple(how), roi)
    whole = roi is not None or how.policy != "stretch"  # an axis that keeps its size counts too
    kept = [i for i, axis in enumerate(axes) if whole or not _unchanged(n, axis, given[i], sizes is not None)]
    if not kept:
        return n.tensor(0)
    if roi is not None:
        roi = [roi[i] for i in kept] + [roi[i + len(axes)] for i in kept]
    axes = [axes[i] for i in kept]
    given = [given[i] for i in kept]
    direct = _interpolation(n, axes, given, how, by_size=sizes is not None)
    if direct is not None:
        return direct
    by_size, by_scale = (given, None) if sizes is not None else (None, given)
    return n.call(resample, n.tensor(0), axes, by_size, by_scale, dataclasses.astuple(how), roi)


def _unchanged(n: NodeView, axis: int, given: Number, by_size: bool) -> bool:
    if not by_size:
        return isinstance(given, (int, float)) and given == 1.0
    return (isinstance(given, int) and n.rank(0) is not None and n.size(0, axis) == given) or given is n.size(0, axis)


def _interpolation(n: NodeView, axes: list[int], given: list[Any], how: Sampling, *, by_size: bool) -> Lowered | None:
    """Torch's own interpolation, where it is defined the same way."""
    if n.rank(0) != 4 or axes != [2, 3] or not n.is_float(0) or how.antialias or how.policy != "stretch":
        return None
    whole = not by_size and all(isinstance(g, (int, float)) and g >= 1 and float(g).is_integer() for g in given)
    if whole and how.mode == "nearest" and how.coordinates == "asymmetric" and how.nearest in ("floor", "simple"):
        return n.call(functional.interpolate, n.tensor(0), scale_factor=[float(g) for g in given], mode="nearest")
    if not (whole or by_size) or how.mode != "linear":
        return None
    target: dict[str, Any] = {"size": given} if by_size else {"scale_factor": [float(g) for g in given]}
    if how.coordinates in ("half_pixel", "align_corners"):
        aligned = how.coordinates == "align_corners"
        return n.call(functional.interpolate, n.tensor(0), mode="bilinear", align_corners=aligned, **target)
    return None
