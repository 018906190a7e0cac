"""Operators that move numbers: results stay on the grid of their input."""

from __future__ import annotations

import math

import numpy as np

from onnxqat.deployment.litert.graph import RefusedError
from onnxqat.deployment.litert.model import Array, Options
from onnxqat.deployment.litert.site import Site
from onnxqat.deployment.litert.values import Constant, Reshaped, Value, channels_last, plain


def identity(site: Site) -> None:
    """Identity, Dropout, Cast to float of floats."""
    if site.node.op_type == "Cast" and not _keeps_type(site):
        raise RefusedError("LiteRT files are written of floats and codes; it casts to another type")
    site.give(site.held(0))


def _keeps_type(site: Site) -> bool:
    held = site.held(0)
    source = held.source if isinstance(held, Reshaped) else held
    kind = source.array.dtype if isinstance(source, Constant) else source.dtype
    return int(site.attributes["to"]) == 1 and (held.grid is not None or kind == np.float32)


def reshape(site: Site) -> None:
    """Reshape, Flatten, Squeeze and Unsqueeze."""
    value = site.input(0)
    if isinstance(value, Constant):
        raise RefusedError("its input is a constant on codes")
    site.give(Reshaped(value, _target(site, value.shape), site.name))


def _target(site: Site, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the result, from what the node says."""
    kind = site.node.op_type
    if kind == "Flatten":
        axis = int(site.attribute("axis", 1))
        axis = axis + len(shape) if axis < 0 else axis
        return (math.prod(shape[:axis]), math.prod(shape[axis:]))
    if kind == "Reshape":
        keeps_zero = bool(site.attribute("allowzero", 0))
        sizes = site.numbers(1)
        sizes = [shape[i] if n == 0 and not keeps_zero else n for i, n in enumerate(sizes)]
        known = math.prod(n for n in sizes if n >= 0)
        return tuple(math.prod(shape) // max(known, 1) if n < 0 else n for n in sizes)
    given = "axes" in site.attributes or site.has(1)
    if kind == "Squeeze":
        axes = (
            [a % len(shape) for a in site.numbers(1, "axes")] if given else [i for i, n in enumerate(shape) if n == 1]
        )
        return tuple(n for i, n in enumerate(shape) if i not in axes)
    axes = site.numbers(1, "axes")
    rank = len(shape) + len(axes)
    places = {axis % rank for axis in axes}
    rest = iter(shape)
    return tuple(1 if i in places else next(rest) for i in range(rank))


def transpose(site: Site) -> None:
    """Transpose: nothing moves, the axes have other numbers; operators that need another layout ask for it."""
    value = site.value(0)
    order = list(site.attribute("perm", range(len(value.shape))[::-1]))
    shape = tuple(value.shape[axis] for axis in order)
    layout = tuple(order.index(axis) for axis in value.layout)
    site.give(Value(value.number, shape, layout, value.grid, value.dtype))


def concat(site: Site) -> None:
    """Concat; the inputs are brought onto the grid of the result where that has one."""
    count = len(site.node.input)
    grids = [site.held(i).grid for i in range(count)]
    integer = all(grid is not None for grid in grids) and site.target.grid is not None
    first = grids[0]
    shared = first is not None and all(grid is not None and grid.same(first) for grid in grids)
    values = [site.value(i) for i in range(count)]
    if not integer and not shared:
        values = [site.builder.floats(value) for value in values]
    layout = max(values, key=lambda v: int(np.prod(v.shape))).layout
    target = site.target.grid
    if integer and target is not None:
        values = [site.builder.quantized(v, target, f"{site.name}/part") for v in values]
    numbers = [site.builder.laid(value, layout).number for value in values]
    axis = int(site.attributes["axis"]) % len(layout)
    options: Options = ("ConcatenationOptions", {"Axis": layout.index(axis), "FusedActivationFunction": 0})
    shape = list(values[0].shape)
    shape[axis] = sum(value.shape[axis] for value in values)
    if integer:
        site.write("CONCATENATION", numbers, layout, options, grid=target, shape=shape)
        return
    grid, dtype = (first if shared else None), values[0].dtype
    site.give(site.builder.add("CONCATENATION", numbers, shape, layout, grid, site.name, options, dtype))


def split(site: Site) -> None:
    """Split, as one SLICE for each part that is read."""
    value = site.value(0)
    axis = int(site.attribute("axis", 0)) % len(value.shape)
    count = len(site.node.output)
    if "split" in site.attributes or site.has(1):
        sizes = site.numbers(1, "split")
    else:
        each = -(-value.shape[axis] // count)
        sizes = [min(each, value.shape[axis] - each * i) for i in range(count)]
    start = 0
    for name, size in zip(site.node.output, sizes, strict=True):
        if name and site.graph.is_read(name):
            site.graph.held[name] = _part(site, value, {axis: (start, start + size, 1)}, name)
        start += size


def piece(site: Site) -> None:
    """Slice with constant ends."""
    value = site.value(0)
    rank = len(value.shape)
    starts, ends = site.numbers(1, "starts"), site.numbers(2, "ends")
    given_axes = "axes" in site.attributes or site.has(3)
    axes = [a % rank for a in site.numbers(3, "axes")] if given_axes else list(range(len(starts)))
    steps = site.numbers(4) if site.has(4) else [1] * len(starts)
    bounds = {}
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        first, last, _ = slice(start, end, step).indices(value.shape[axis])
        bounds[axis] = (first, max(first, last) if step > 0 else last, step)
    site.give(_part(site, value, bounds, site.name))


def _part(site: Site, value: Value, bounds: dict[int, tuple[int, int, int]], name: str) -> Value:
    """Elements of `value` from a first to before a last one, by axis, as SLICE or STRIDED_SLICE.

    Backwards, the last one in front of the first place is -1, which STRIDED_SLICE would count from the end.
    """
    every = {axis: bounds.get(axis, (0, size, 1)) for axis, size in enumerate(value.shape)}
    shape = [len(range(*every[axis])) for axis in range(len(value.shape))]
    if tuple(shape) == value.shape:
        return value
    if 0 in shape:
        raise RefusedError("it leaves nothing over")
    ordered = [every[axis] for axis in value.layout]
    begin = site.builder.integers(f"{name}/begin", [first for first, _, _ in ordered])
    if all(step == 1 for _, _, step in ordered):
        sizes = site.builder.integers(f"{name}/size", [last - first for first, last, _ in ordered])
        inputs, code, options = [value.number, begin, sizes], "SLICE", ("SliceOptions", dict[str, int]())
    else:
        ends = [last if last >= 0 else -size - 1 for (_, last, _), size in zip(ordered, value.stored, strict=True)]
        end = site.builder.integers(f"{name}/end", ends)
        steps = site.builder.integers(f"{name}/steps", [step for _, _, step in ordered])
        inputs, code, options = [value.number, begin, end, steps], "STRIDED_SLICE", ("StridedSliceOptions", {})
    return site.builder.add(code, inputs, shape, value.layout, value.grid, name, options, value.dtype)


def pad(site: Site) -> None:
    """Pad with a constant, or reflected."""
    value = site.value(0)
    rank = len(value.shape)
    pads = site.numbers(1, "pads")
    axes = [a % rank for a in site.numbers(3)] if site.has(3) else list(range(rank))
    half = len(axes)
    sides = {axis: (pads[i], pads[i + half]) for i, axis in enumerate(axes)}
    if any(side < 0 for pair in sides.values() for side in pair):
        raise RefusedError("it cuts off instead of padding")
    mode = site.attribute("mode", "constant")
    rows = [list(sides.get(axis, (0, 0))) for axis in value.layout]
    shape = [size + sum(sides.get(axis, (0, 0))) for axis, size in enumerate(value.shape)]
    inputs = [value.number, site.builder.integers(f"{site.name}/pads", rows)]
    code, options = "PAD", ("PadOptions", dict[str, int]())
    if mode == "reflect":
        code, options = "MIRROR_PAD", ("MirrorPadOptions", {"Mode": 0})
    elif mode != "constant":
        raise RefusedError(f"LiteRT has no padding of mode {mode!r}")
    else:
        fill = _fill(site, value)
        if fill is not None:
            inputs.append(site.builder.constant(f"{site.name}/fill", fill, value.grid))
            code, options = "PADV2", ("PadV2Options", {})
    site.give(site.builder.add(code, inputs, shape, value.layout, value.grid, site.name, options, value.dtype))


def _fill(site: Site, value: Value) -> Array | None:
    """The number that is padded with, None for 0."""
    number = float(site.constant(2).values.reshape(-1)[0]) if site.has(2) else float(site.attribute("value", 0.0))
    if number == 0:
        return None
    if value.grid is None:
        return np.array([number], value.dtype)
    return np.array([np.clip(value.grid.code(number), -128, 127)], np.int8)


def gather(site: Site) -> None:
    """Gather with constant indices."""
    value, indices = site.value(0), site.constant(1).array
    axis = int(site.attribute("axis", 0)) % len(value.shape)
    places = np.where(indices < 0, indices + value.shape[axis], indices).astype(np.int32)
    if indices.ndim != 1:
        value = site.builder.laid(value, plain(len(value.shape)))
    shape = (*value.shape[:axis], *places.shape, *value.shape[axis + 1 :])
    layout = value.layout if indices.ndim == 1 else plain(len(shape))
    options: Options = ("GatherOptions", {"Axis": value.place(axis), "BatchDims": 0})
    inputs = [value.number, site.builder.constant(f"{site.name}/indices", places)]
    site.give(site.builder.add("GATHER", inputs, shape, layout, value.grid, site.name, options, value.dtype))


def expand(site: Site) -> None:
    """Expand and Tile, as TILE."""
    value = site.value(0)
    if site.node.op_type == "Tile":
        times = site.numbers(1)
    else:
        wanted = np.broadcast_shapes(value.shape, tuple(site.numbers(1)))
        if len(wanted) != len(value.shape):
            value = site.builder.reshaped(value, (*[1] * (len(wanted) - len(value.shape)), *value.shape), site.name)
        times = [size // old for size, old in zip(wanted, value.shape, strict=True)]
    shape = [size * n for size, n in zip(value.shape, times, strict=True)]
    inputs = [value.number, site.builder.integers(f"{site.name}/times", [times[axis] for axis in value.layout])]
    options: Options = ("TileOptions", {})
    site.give(site.builder.add("TILE", inputs, shape, value.layout, value.grid, site.name, options, value.dtype))


def depth_to_space(site: Site) -> None:
    """DepthToSpace: with mode DCR LiteRT's own, with CRD as a reshape, a transposition and a reshape."""
    value, size = site.value(0), int(site.attributes["blocksize"])
    batch, channels, rows, columns = value.shape
    shape = (batch, channels // size**2, rows * size, columns * size)
    if site.attribute("mode", "DCR") == "DCR":
        value = site.builder.laid(value, channels_last(4))
        options: Options = ("DepthToSpaceOptions", {"BlockSize": size})
        inputs = [value.number]
        site.give(site.builder.add("DEPTH_TO_SPACE", inputs, shape, value.layout, value.grid, site.name, options))
        return
    value = site.builder.reshaped(value, (batch, channels // size**2, size, size, rows, columns), f"{site.name}/blocks")
    order = (0, 1, 4, 2, 5, 3)
    moved = Value(
        value.number,
        tuple(value.shape[axis] for axis in order),
        tuple(order.index(axis) for axis in value.layout),
        value.grid,
        value.dtype,
    )
    site.give(Reshaped(moved, shape, site.name))


def space_to_depth(site: Site) -> None:
    """SpaceToDepth."""
    value, size = site.value(0), int(site.attributes["blocksize"])
    value = site.builder.laid(value, channels_last(4))
    batch, channels, rows, columns = value.shape
    shape = (batch, channels * size**2, rows // size, columns // size)
    options: Options = ("SpaceToDepthOptions", {"BlockSize": size})
    made = site.builder.add("SPACE_TO_DEPTH", [value.number], shape, value.layout, value.grid, site.name, options)
    site.give(made)


def resize(site: Site) -> None:
    """Resize of the two spatial axes, nearest or linear; it stays on the grid of its input."""
    value = site.value(0)
    target = site.shape
    if len(value.shape) != 4 or target[:2] != value.shape[:2]:
        raise RefusedError("LiteRT resizes the two spatial axes of images")
    if site.attribute("antialias", 0) or site.attribute("exclude_outside", 0):
        raise RefusedError("LiteRT resizes without anti-aliasing")
    mode, where = site.attribute("mode", "nearest"), site.attribute("coordinate_transformation_mode", "half_pixel")
    align, half = where == "align_corners", where in ("half_pixel", "pytorch_half_pixel")
    if not align and not half and where != "asymmetric":
        raise RefusedError(f"LiteRT has no resize with coordinates {where!r}")
    value = site.builder.laid(value, channels_last(4))
    pairs = list(zip(value.shape[2:], target[2:], strict=True))
    fields: dict[str, int | float | bool] = {"AlignCorners": align, "HalfPixelCenters": half}
    if mode == "nearest":
        kind = site.attribute("nearest_mode", "round_prefer_floor")
        if any(
            _nearest(old, new, where, kind) != _nearest_here(old, new, align=align, half=half) for old, new in pairs
        ):
            raise RefusedError(f"LiteRT takes other neighbours than {where!r} with {kind!r} does for these sizes")
        code, options = "RESIZE_NEAREST_NEIGHBOR", ("ResizeNearestNeighborOptions", fields)
    elif mode == "linear":
        if where == "pytorch_half_pixel" and any(new == 1 for _, new in pairs):
            raise RefusedError("LiteRT has no pytorch_half_pixel for a size of 1")
        code, options = "RESIZE_BILINEAR", ("ResizeBilinearOptions", fields)
    else:
        raise RefusedError(f"LiteRT has no resize of mode {mode!r}")
    inputs = [value.number, site.builder.integers(f"{site.name}/size", list(target[2:]))]
    site.give(site.builder.add(code, inputs, target, value.layout, value.grid, site.name, options))


def _nearest(old: int, new: int, where: str, kind: str) -> list[int]:
    """Elements that ONNX takes along an axis."""
    places = np.arange(new, dtype=np.float64)
    if where == "align_corners":
        places = places * (old - 1) / max(new - 1, 1)
    elif where == "asymmetric":
        places = places * old / new
    else:
        places = (places + 0.5) * old / new - 0.5
    if kind.startswith("round"):
        kind, places = ("ceil", places - 0.5) if kind == "round_prefer_floor" else ("floor", places + 0.5)
    found = np.floor(places) if kind == "floor" else np.ceil(places)
    return [int(n) for n in found.clip(0, old - 1)]


def _nearest_here(old: int, new: int, *, align: bool, half: bool) -> list[int]:
    """Elements that LiteRT takes along an axis."""
    scale = np.float32(old - 1) / np.float32(new - 1) if align and new > 1 else np.float32(old) / np.float32(new)
    places = (np.arange(new, dtype=np.float32) + np.float32(0.5 if half else 0)) * scale
    found = np.floor(places + np.float32(0.5)) if align else np.floor(places)
    return [int(n) for n in found.clip(0, old - 1)]
