"""AVERAGE_POOL_2D, MAX_POOL_2D, MEAN and the other reductions."""

from __future__ import annotations

import dataclasses

from onnxqat.deployment.litert.graph import RefusedError
from onnxqat.deployment.litert.model import Options
from onnxqat.deployment.litert.operators.windows import (
    SAME,
    VALID,
    Window,
    as_image,
    same_with_more,
    window,
    with_padding,
)
from onnxqat.deployment.litert.site import LOWEST, Site
from onnxqat.deployment.litert.values import Value, channels_last

IMAGE = (0, 2, 3, 1)
_LOWEST_FLOAT = -3.4028234663852886e38


def max_pool(site: Site) -> None:
    """MaxPool; it stays on the grid of its input."""
    if len(site.node.output) > 1 and site.graph.is_read(site.node.output[1]):
        raise RefusedError("LiteRT has no MaxPool that gives indices")
    if site.attribute("storage_order", 0):
        raise RefusedError("it has a storage order")
    image, slid = _image(site)
    kind = slid.kind(image.shape[2:])
    if set(slid.dilations) != {1}:
        raise RefusedError("LiteRT has no pool with dilations")
    if kind is None:
        fill = LOWEST if image.grid is not None else _LOWEST_FLOAT
        image, kind = with_padding(site.builder, image, slid, fill), VALID
    _pool(site, "MAX_POOL_2D", image, slid, kind)


def average_pool(site: Site) -> None:
    """AveragePool; it stays on the grid of its input, and padding counts only where it is written."""
    image, slid = _image(site)
    kind = slid.kind(image.shape[2:])
    if set(slid.dilations) != {1}:
        raise RefusedError("LiteRT has no pool with dilations")
    counted = bool(site.attribute("count_include_pad", 0))
    if slid.padded and (counted or kind is None):
        if not counted:
            _extended_average(site, image, slid)
            return
        if site.attribute("ceil_mode", 0):
            raise RefusedError("its last windows reach beyond padding that counts")
        image, kind = with_padding(site.builder, image, slid), VALID
    assert kind is not None
    _pool(site, "AVERAGE_POOL_2D", image, slid, kind)


def _extended_average(site: Site, image: Value, slid: Window) -> None:
    """An AveragePool whose padding is SAME of a larger image: that is made by PAD, and what is too much cut off."""
    places = (*[1] * (4 - len(site.shape)), *site.shape[2:])
    more = same_with_more(slid, image.shape[2:], places)
    if more is None:
        raise RefusedError("its padding, which does not count in the mean, is other than LiteRT's SAME")
    rows, columns = more
    behind = dataclasses.replace(slid, before=(0, 0), after=(rows, columns))
    larger = with_padding(site.builder, image, behind)
    made = [-(-size // stride) for size, stride in zip(larger.shape[2:], slid.strides, strict=True)]
    shape = (*image.shape[:2], *made)
    whole = site.builder.add(
        "AVERAGE_POOL_2D", [larger.number], shape, IMAGE, image.grid, f"{site.name}/whole", _options(slid, SAME)
    )
    sides = [
        site.builder.integers(f"{site.name}/begin", [0, 0, 0, 0]),
        site.builder.integers(f"{site.name}/size", [image.shape[0], *places, image.shape[1]]),
    ]
    cut = site.builder.add(
        "SLICE", [whole.number, *sides], (*image.shape[:2], *places), IMAGE, image.grid, site.name, ("SliceOptions", {})
    )
    site.give(site.builder.reshaped(cut, site.shape, f"{site.name}/sequence"))


def _image(site: Site) -> tuple[Value, Window]:
    size = site.attribute("kernel_shape", [])
    image = as_image(site, site.value(0))
    rank = len(size)
    return image, window(site, size, image.shape[2:][-rank:], site.shape[2:])


def _pool(site: Site, code: str, image: Value, slid: Window, kind: int) -> None:
    batch, channels, *sizes = site.shape
    shape = (batch, channels, *[1] * (2 - len(sizes)), *sizes)
    made = site.builder.add(code, [image.number], shape, IMAGE, image.grid, site.name, _options(slid, kind))
    site.give(site.builder.reshaped(made, site.shape, f"{site.name}/sequence"))


def _options(slid: Window, kind: int) -> Options:
    fields = {
        "Padding": kind,
        "StrideH": slid.strides[0],
        "StrideW": slid.strides[1],
        "FilterHeight": slid.size[0],
        "FilterWidth": slid.size[1],
    }
    return "Pool2DOptions", fields


def global_average(site: Site) -> None:
    """GlobalAveragePool, as MEAN."""
    _reduce(site, "MEAN", list(range(2, len(site.shape))), keeps=True)


def global_max(site: Site) -> None:
    """GlobalMaxPool, as REDUCE_MAX, on the grid of its input."""
    _reduce(site, "REDUCE_MAX", list(range(2, len(site.shape))), keeps=True)


def reduction(site: Site) -> None:
    """ReduceMean, ReduceMax, ReduceMin and ReduceSum."""
    code = {"ReduceMean": "MEAN", "ReduceMax": "REDUCE_MAX", "ReduceMin": "REDUCE_MIN", "ReduceSum": "SUM"}
    rank = len(site.graph.shape(site.node.input[0]))
    given = "axes" in site.attributes or site.has(1)
    axes = [axis % rank for axis in site.numbers(1, "axes")] if given else []
    if not axes:
        if site.attribute("noop_with_empty_axes", 0):
            site.give(site.held(0))
            return
        axes = list(range(rank))
    _reduce(site, code[site.node.op_type], axes, keeps=bool(site.attribute("keepdims", 1)))


def _reduce(site: Site, code: str, axes: list[int], *, keeps: bool) -> None:
    """A reduction along axes of the ONNX tensor; only MEAN and SUM change the grid."""
    scaled = code in ("MEAN", "SUM")
    value = site.value(0)
    if scaled and not site.integer(0):
        value = site.builder.floats(value)
    if code == "MEAN" and len(value.shape) == 4 and set(axes) == {2, 3}:
        value = site.builder.laid(value, channels_last(4))
    along = site.builder.integers(f"{site.name}/axes", sorted(value.place(axis) for axis in axes))
    left = [axis for axis in value.layout if axis not in axes]
    layout = value.layout if keeps else tuple(sorted(left).index(axis) for axis in left)
    options: Options = ("ReducerOptions", {"KeepDims": keeps})
    inputs = [value.number, along]
    if value.grid is not None and scaled:
        site.write(code, inputs, layout, options, grid=site.target.grid)
        return
    site.give(site.builder.add(code, inputs, site.shape, layout, value.grid, site.name, options))
