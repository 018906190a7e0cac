"""Operators that rearrange elements, and the ones that read a shape."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch.nn import functional

from onnxqat.bridge.functional import shape_math
from onnxqat.bridge.importing.builder import Lowered, NodeView
from onnxqat.bridge.importing.values import Number


def reshape_to(x: torch.Tensor, shape: Any, allow_zero: bool) -> torch.Tensor:
    """Reshape where the sizes are known at run time only; 0 keeps the input's size unless `allow_zero`."""
    if not allow_zero:
        shape = [x.shape[axis] if size == 0 else size for axis, size in enumerate(shape)]
    return torch.reshape(x, list(shape))


def expand_to(x: torch.Tensor, shape: Any) -> torch.Tensor:
    """Two-way broadcast of `x` with `shape`."""
    target: torch.Size = torch.broadcast_shapes(x.shape, tuple(shape))  # type: ignore[no-untyped-call]
    return x.expand(target)


def squeeze_ones(x: torch.Tensor) -> torch.Tensor:
    """Without any axis of size 1."""
    return torch.squeeze(x)


def flatten_at(x: torch.Tensor, axis: int) -> torch.Tensor:
    """As a matrix: the axes before `axis`, and the rest."""
    if axis < 0:
        axis += x.dim()
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


def all_pads(rank: int, pads: Any, axes: Any) -> list[Any]:
    """Pads of some axes as pads of every axis."""
    full: list[Any] = [0] * (2 * rank)
    for position, axis in enumerate(axes):
        full[axis % rank] = pads[position]
        full[axis % rank + rank] = pads[position + len(axes)]
    return full


def pad_axes(x: torch.Tensor, pads: Any, axes: Any, mode: str, value: Any) -> torch.Tensor:
    """Pad axes that are known at run time only."""
    return pad_any(x, all_pads(x.dim(), pads, axes), mode, value)


def unsqueeze_all(x: torch.Tensor, axes: list[int]) -> torch.Tensor:
    """Insert axes of size 1, numbered in the result."""
    rank = x.dim() + len(axes)
    for axis in sorted(a % rank for a in axes):
        x = x.unsqueeze(axis)
    return x


def number_of_elements(x: torch.Tensor) -> Any:
    """Product of the sizes."""
    return math.prod(x.shape)


def shape_as_tensor(x: torch.Tensor, start: int, end: int | None) -> torch.Tensor:
    """The shape as a tensor, where the rank is known at run time only."""
    return torch.tensor(list(x.shape)[start:end], dtype=torch.int64, device=x.device)


def depth_to_space_columns(x: torch.Tensor, block: int) -> torch.Tensor:
    """Depth to space in mode DCR (block rows, block columns, then depth)."""
    b, c, h, w = x.shape
    y = x.reshape(b, block, block, c // (block * block), h, w).permute(0, 3, 4, 1, 5, 2)
    return y.reshape(b, c // (block * block), h * block, w * block)


def space_to_depth_columns(x: torch.Tensor, block: int) -> torch.Tensor:
    """Space to depth in mode DCR."""
    b, c, h, w = x.shape
    y = x.reshape(b, c, h // block, block, w // block, block).permute(0, 3, 5, 1, 2, 4)
    return y.reshape(b, c * block * block, h // block, w // block)


def pad_any(x: torch.Tensor, pads: list[int], mode: str, value: Any) -> torch.Tensor:
    """Pad each axis by (begin, end), cropping where negative; any rank and any mode.

    Reflection of more than the axis holds goes back and forth, as in numpy.
    """
    half = len(pads) // 2
    crop = [min(p, 0) for p in pads]
    grow = [max(p, 0) for p in pads]
    for axis in range(half):
        size = x.shape[axis]
        if crop[axis] or crop[axis + half]:
            x = x.narrow(axis, -crop[axis], size + crop[axis] + crop[axis + half])
    if mode == "constant":
        order = [g for axis in reversed(range(half)) for g in (grow[axis], grow[axis + half])]
        if torch.is_tensor(value):
            value = value.item()
        return functional.pad(x, order, value=value)
    for axis in range(half):
        if grow[axis] or grow[axis + half]:
            positions = torch.arange(-grow[axis], x.shape[axis] + grow[axis + half], device=x.device)
            x = x.index_select(axis, source_positions(positions, x.shape[axis], mode))
    return x


def source_positions(positions: torch.Tensor, size: int, mode: str) -> torch.Tensor:
    """Map `positions`, some outside the axis, to the positions inside that their elements are copied from."""
    if mode == "edge":
        return positions.clamp(0, size - 1)
    if mode == "wrap":
        return torch.remainder(positions, size)
    period = shape_math.maximum(2 * (size - 1), 1)
    folded = torch.remainder(positions, period)
    return torch.minimum(folded, period - folded) if size > 1 else torch.zeros_like(positions)


def reshape(n: NodeView) -> Lowered:
    """Reshape 5 to 25."""
    allow_zero = bool(n.attr("allowzero", 0))
    shape = n.ints(1)
    arrays = n.grids([0])
    if arrays is not None and n.static(1) is not None and isinstance(shape, list):
        known = [s for s in shape if isinstance(s, int)]
        if not allow_zero:
            known = [arrays[0].shape[axis] if size == 0 else size for axis, size in enumerate(known)]
        return n.numbers(arrays[0].reshape(known))
    if not isinstance(shape, list):
        return n.call(reshape_to, n.tensor(0), shape, allow_zero)
    if not allow_zero:
        shape = [n.size(0, axis) if isinstance(size, int) and size == 0 else size for axis, size in enumerate(shape)]
    return n.call(torch.reshape, n.tensor(0), shape)


def expand(n: NodeView) -> Lowered:
    """Expand 8 and 13."""
    shape = n.ints(1)
    arrays = n.grids([0])
    if arrays is not None and isinstance(shape, list) and all(isinstance(s, int) for s in shape):
        known = [s for s in shape if isinstance(s, int)]
        if np.prod(known) <= 4096:
            return n.numbers(np.broadcast_to(arrays[0], np.broadcast_shapes(arrays[0].shape, tuple(known))))
    return n.call(expand_to, n.tensor(0), shape)


def transpose(n: NodeView) -> Lowered:
    """Transpose 1 to 25."""
    order = n.attr("perm")
    arrays = n.grids()
    if arrays is not None:
        return n.numbers(arrays[0].transpose(order))
    if order is None:
        rank = n.rank(0)
        if rank is None:
            return n.call(reversed_axes, n.tensor(0))
        order = list(reversed(range(rank)))
    return n.call(torch.permute, n.tensor(0), order)


def reversed_axes(x: torch.Tensor) -> torch.Tensor:
    """Axes in reverse order."""
    return x.permute(list(reversed(range(x.dim()))))


def _axes(n: NodeView) -> Any:
    """The axes: a list, a node that computes it, or None where they are omitted."""
    if n.opset < 13:
        return n.attr("axes")
    return n.ints(1) if n.has(1) else None


def squeeze(n: NodeView) -> Lowered:
    """Squeeze 1 to 25."""
    axes = _axes(n)
    arrays = n.grids([0])
    if arrays is not None and (axes is None or isinstance(axes, list)):
        return n.numbers(np.squeeze(arrays[0], None if axes is None else tuple(axes)))
    if axes is None:
        return n.call(squeeze_ones, n.tensor(0))
    return n.call(torch.squeeze, n.tensor(0), axes[0] if isinstance(axes, list) and len(axes) == 1 else axes)


def unsqueeze(n: NodeView) -> Lowered:
    """Unsqueeze 1 to 25."""
    axes = _axes(n)
    arrays = n.grids([0])
    if arrays is not None and isinstance(axes, list):
        return n.numbers(np.expand_dims(arrays[0], tuple(axes)))
    if isinstance(axes, list) and len(axes) == 1:
        return n.call(torch.unsqueeze, n.tensor(0), axes[0])
    return n.call(unsqueeze_all, n.tensor(0), axes)


def flatten(n: NodeView) -> Lowered:
    """Flatten 1 to 25."""
    axis = int(n.attr("axis", 1))
    if axis == 1 and (n.rank(0) or 0) >= 2:
        return n.call(torch.flatten, n.tensor(0), 1)
    return n.call(flatten_at, n.tensor(0), axis)


def shape(n: NodeView) -> Lowered:
    """Shape 1 to 25: numbers, not a tensor, where the rank is known."""
    start, end = int(n.attr("start", 0)), n.attr("end")
    rank = n.rank(0)
    if rank is None:
        return n.call(shape_as_tensor, n.tensor(0), start, end)
    sizes = [n.size(0, axis) for axis in range(rank)[start:end]]
    made = np.empty(len(sizes), dtype=object)
    made[:] = sizes
    return n.numbers(made, ir.DataType.INT64)


def size(n: NodeView) -> Lowered:
    """Size 1 to 25: a number, not a tensor."""
    rank = n.rank(0)
    if rank is None:
        return n.numbers(np.array(n.method("numel", n.tensor(0)), dtype=object), ir.DataType.INT64)
    product: Number = 1
    for axis in range(rank):
        product = n.builder.number(operator.mul, product, n.size(0, axis))
    return n.numbers(np.array(product, dtype=object), ir.DataType.INT64)


def identity(n: NodeView) -> Lowered:
    """Identity 1 to 25; sequences are refused where their operators are."""
    return n.value(0)


def tile(n: NodeView) -> Lowered:
    """Tile 6 and 13."""
    repeats = n.ints(1)
    arrays = n.grids([0])
    if arrays is not None and isinstance(repeats, list) and all(isinstance(r, int) for r in repeats):
        known = [r for r in repeats if isinstance(r, int)]
        if arrays[0].size * np.prod(known) <= 4096:
            return n.numbers(np.tile(arrays[0], known))
    return n.call(torch.tile, n.tensor(0), repeats)


def depth_to_space(n: NodeView) -> Lowered:
    """DepthToSpace 1 to 28, both modes."""
    block = int(n.attr("blocksize"))
    if n.attr("mode", "DCR") == "CRD":
        return n.call(functional.pixel_shuffle, n.tensor(0), block)
    return n.call(depth_to_space_columns, n.tensor(0), block)


def space_to_depth(n: NodeView) -> Lowered:
    """SpaceToDepth 1 to 28, both modes."""
    block = int(n.attr("blocksize"))
    if n.attr("mode", "DCR") == "CRD":
        return n.call(functional.pixel_unshuffle, n.tensor(0), block)
    return n.call(space_to_depth_columns, n.tensor(0), block)


def pad(n: NodeView) -> Lowered:
    """Pad 2 to 25: constant, reflect, edge and wrap; negative pads crop."""
    mode = n.attr("mode", "constant")
    if n.opset < 11:
        pads: Any = n.attr("pads")
        return _emit_pad(n, pads, mode, n.attr("value", 0.0))
    pads = n.ints(1)
    value: Any = 0
    if n.has(2):
        known = n.static(2)
        value = n.tensor(2) if known is None else known.reshape(()).item()
    if not n.has(3):
        return _emit_pad(n, pads, mode, value)
    axes = n.ints(3)
    if isinstance(pads, list) and isinstance(axes, list) and n.rank(0) is not None:
        return _emit_pad(n, all_pads(n.need_rank(0), pads, axes), mode, value)
    return n.call(pad_axes, n.tensor(0), pads, axes, mode, value)


def _emit_pad(n: NodeView, pads: Any, mode: str, value: Any) -> Lowered:
    static = isinstance(pads, list) and all(isinstance(p, int) for p in pads)
    if static and not any(pads):
        return n.tensor(0)
    if static and mode == "constant" and isinstance(value, (int, float)) and n.dtype(0) is not ir.DataType.BOOL:
        half = len(pads) // 2
        order = [p for axis in reversed(range(half)) for p in (pads[axis], pads[axis + half])]
        while len(order) > 2 and order[-2:] == [0, 0]:
            order = order[:-2]
        return n.call(functional.pad, n.tensor(0), order, value=value)
    return n.call(pad_any, n.tensor(0), pads, mode, value)
