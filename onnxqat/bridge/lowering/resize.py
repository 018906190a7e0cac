"""Resize (ONNX versions 10 to 19) and Upsample (7 to 10), axis by axis in float32 as onnxruntime computes them.

Refused: ``antialias``, ``keep_aspect_ratio_policy`` other than stretch, and ``align_corners`` with a scale that does not
give a whole number of elements, where onnxruntime and the standard's own tests differ.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch.nn import functional

from onnxqat.bridge import shape_math
from onnxqat.bridge.builder import Lowered, NodeView
from onnxqat.bridge.values import Number
from onnxqat.errors import UnsupportedError


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How a resampling reads its input."""

    mode: str
    coordinates: str
    nearest: str = "round_prefer_floor"
    cubic: float = -0.75
    exclude_outside: bool = False
    extrapolation: float = 0.0


def source_coordinates(
    how: Sampling, out: Any, size: Any, scale: Any, region: tuple[float, float] | None, device: Any
) -> torch.Tensor:
    """Position in the input, of `size` elements, for each of `out` elements."""
    x = torch.arange(out, device=device, dtype=torch.float32)
    kind = how.coordinates
    result: torch.Tensor = (x + 0.5) / scale - 0.5  # half_pixel
    if kind == "asymmetric":
        result = x / scale
    elif kind == "tf_half_pixel_for_nn":
        result = (x + 0.5) / scale
    elif kind == "align_corners":
        result = x * (size - 1) / (out - 1) if out > 1 else torch.zeros_like(x)
    elif kind == "tf_crop_and_resize" and region is not None:
        start, end = region
        middle = 0.5 * (start + end) * (size - 1)
        step = (end - start) * (size - 1) / (out - 1) if out > 1 else 0.0
        result = start * (size - 1) + x * step if out > 1 else torch.full_like(x, middle)
    elif kind == "pytorch_half_pixel" and out <= 1:
        result = torch.zeros_like(x)
    elif kind == "half_pixel_symmetric":
        result = result + size / 2 * (1 - out / (size * scale))
    return result


def nearest_index(x: torch.Tensor, rule: str, scale: Any) -> torch.Tensor:
    """Which element the position `x` takes."""
    if rule == "floor" or (rule == "simple" and scale >= 1):
        return torch.floor(x)
    if rule in ("ceil", "simple"):
        return torch.ceil(x)
    return torch.ceil(x - 0.5) if rule == "round_prefer_floor" else torch.floor(x + 0.5)


def cubic_weights(fraction: torch.Tensor, a: float) -> list[torch.Tensor]:
    """Weights of the four neighbours."""
    t = fraction
    return [
        ((a * (t + 1) - 5 * a) * (t + 1) + 8 * a) * (t + 1) - 4 * a,
        ((a + 2) * t - (a + 3)) * t * t + 1,
        ((a + 2) * (1 - t) - (a + 3)) * (1 - t) * (1 - t) + 1,
        ((a * (2 - t) - 5 * a) * (2 - t) + 8 * a) * (2 - t) - 4 * a,
    ]


def resample_axis(
    x: torch.Tensor, axis: int, out: Any, scale: Any, how: Sampling, region: tuple[float, float] | None = None
) -> torch.Tensor:
    """Resample one axis to `out` elements."""
    size = x.shape[axis]
    position = source_coordinates(how, out, size, scale, region, x.device)
    last = size - 1
    if how.mode == "nearest":
        index = nearest_index(position, how.nearest, scale).to(torch.int64).clamp(0, last)
        result = x.index_select(axis, index)
    else:
        result = _interpolate(x, axis, position, how)
    if how.coordinates == "tf_crop_and_resize":
        shape = [1] * x.dim()
        shape[axis] = -1
        outside = ((position < 0) | (position > last)).reshape(shape)
        result = torch.where(outside, torch.full_like(result, how.extrapolation), result)
    return result


def _interpolate(x: torch.Tensor, axis: int, position: torch.Tensor, how: Sampling) -> torch.Tensor:
    last = x.shape[axis] - 1
    if how.mode == "linear":
        position = position.clamp(0, last)
    base = torch.floor(position)
    fraction = position - base
    if how.mode == "linear":
        offsets, weights = [0, 1], [1 - fraction, fraction]
    else:
        offsets, weights = [-1, 0, 1, 2], cubic_weights(fraction, how.cubic)
    places = [base.to(torch.int64) + offset for offset in offsets]
    if how.exclude_outside and how.mode == "cubic":
        weights = [w * ((p >= 0) & (p <= last)) for w, p in zip(weights, places, strict=True)]
        total = torch.stack(weights).sum(0)
        weights = [w / total for w in weights]
    shape = [1] * x.dim()
    shape[axis] = -1
    wide = x if x.is_floating_point() else x.to(torch.float32)
    parts = [
        wide.index_select(axis, place.clamp(0, last)) * weight.to(wide.dtype).reshape(shape)
        for place, weight in zip(places, weights, strict=True)
    ]
    result = parts[0]
    for part in parts[1:]:
        result = result + part
    return result.to(x.dtype)


def scaled_size(size: Any, scale: Any) -> Any:
    """``floor(size * scale)``."""
    if isinstance(size, int) and isinstance(scale, float):
        return math.floor(shape_math.single(size * scale))
    return shape_math.to_int(math.floor(size * scale))


def ratio(out: Any, size: Any) -> Any:
    """The scale that makes `out` elements of `size`."""
    return shape_math.divide(shape_math.to_float(out), shape_math.to_float(size))


def resample(
    x: torch.Tensor, axes: list[int], sizes: Any, scales: Any, options: tuple[Any, ...], roi: list[float] | None
) -> torch.Tensor:
    """Resample `axes` one after another, the last axis first; `options` are the fields of :class:`Sampling`."""
    how = Sampling(*options)
    for position in reversed(range(len(axes))):
        axis = axes[position]
        size = x.shape[axis]
        if sizes is not None:
            out, scale = sizes[position], ratio(sizes[position], size)
        else:
            scale = scales[position]
            out = scaled_size(size, scale)
            if how.coordinates == "align_corners" and out != size * scale:
                raise _undefined(size, scale)
        region = None if roi is None else (roi[position], roi[position + len(axes)])
        if out == size and how.coordinates != "tf_crop_and_resize" and scale == 1:
            continue
        x = resample_axis(x, axis, out, scale, how, region)
    return x


def _undefined(size: Any, scale: Any) -> UnsupportedError:
    return UnsupportedError(
        "operator-unsupported",
        f"Resize with align_corners from {size} to {size} * {scale} elements, which is no whole number",
        hint="state the sizes instead of the scales",
    )


def resize(n: NodeView) -> Lowered:
    """Resize 10 to 19; version 10 reads like Upsample."""
    if n.opset < 11:
        return upsample(n)
    if n.attr("antialias", 0):
        raise n.refuse("antialias")
    if n.attr("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise n.refuse("keep_aspect_ratio_policy")
    mode = n.attr("mode", "nearest")
    how = Sampling(
        mode,
        n.attr("coordinate_transformation_mode", "half_pixel"),
        n.attr("nearest_mode", "round_prefer_floor"),
        n.attr("cubic_coeff_a", -0.75),
        bool(n.attr("exclude_outside", 0)),
        n.attr("extrapolation_value", 0.0),
    )
    axes: list[int] | None = n.attr("axes")
    scales = _given(n, 2)
    sizes = _given(n, 3)
    roi = _given(n, 1) if how.coordinates == "tf_crop_and_resize" else None
    if scales is None and sizes is None:
        raise n.refuse("neither scales nor sizes")
    return _emit(n, axes, sizes, scales, how, roi)


def upsample(n: NodeView) -> Lowered:
    """Upsample 7 to 10."""
    mode = n.attr("mode", "nearest")
    if mode not in ("nearest", "linear", "bilinear"):
        raise n.refuse(f"mode {mode}")
    scales: Any = n.attr("scales") if n.opset < 9 else _given(n, 1)
    return _emit(n, None, None, scales, Sampling(mode.removeprefix("bi"), "asymmetric", "simple"), None)


def _given(n: NodeView, index: int) -> Any:
    if not n.has(index) or n.dims(index) == (0,):
        return None
    if n.is_float(index):
        found = n.floats(index)
        return [float(f) if isinstance(f, float) else f for f in found] if isinstance(found, list) else found
    return n.ints(index)


def _emit(n: NodeView, axes: list[int] | None, sizes: Any, scales: Any, how: Sampling, roi: Any) -> Lowered:
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
    kept = [i for i, axis in enumerate(axes) if roi is not None or not _unchanged(n, axis, given[i], sizes is not None)]
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
    if n.rank(0) != 4 or axes != [2, 3] or not n.is_float(0):
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
