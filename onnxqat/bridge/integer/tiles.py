"""Elementwise arithmetic of a unit a tile at a time on CPU, so that what is in between stays in the cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from onnxqat.bridge.kernels import layout, reference

TILE = 2**17
"""Elements of a tile: eight arrays of float32, which a formula has alive at a time, fill a second-level cache."""


def helps(tensors: Sequence[Tensor], least: int = 4 * TILE) -> bool:
    """Check whether tiles pay: at least `least` elements, on CPU, the same layout in memory, not traced."""
    first = tensors[0]
    return (
        not torch.compiler.is_compiling()
        and first.device.type == "cpu"
        and first.numel() >= least
        and all(type(t) is Tensor and t.shape == first.shape and t.stride() == first.stride() for t in tensors)
    )


def elementwise(function: Callable[..., Tensor], *tensors: Tensor, least: int = 4 * TILE) -> Tensor:
    """``function(*tensors)``, which works on each element alone and gives float32; no gradient; whole below `least`."""
    if not helps(tensors, least) or not layout.is_dense(tensors[0]):
        return function(*tensors)
    result = torch.empty_like(tensors[0], dtype=torch.float32)
    pieces = zip(*(torch.split(layout.flat(t), TILE) for t in (result, *tensors)), strict=True)
    for made, *given in pieces:
        made.copy_(function(*given))
    return result


def quotients(x: Tensor, scale: Tensor) -> Tensor:
    """``x / scale`` rounded to whole numbers, with one number as the scale; no gradient."""
    if not helps((x,)) or not layout.is_dense(x):
        return (x / scale).round_()
    result = torch.empty_like(x, dtype=torch.float32)
    for made, given in zip(*(torch.split(layout.flat(t), TILE) for t in (result, x)), strict=True):
        torch.div(given, scale, out=made).round_()
    return result


def by_channel(
    function: Callable[..., tuple[Tensor, ...]], axis: int, x: Tensor, *values: Tensor, results: int
) -> tuple[Tensor, ...]:
    """``function(x, *values)`` with values of each channel, which works on each element alone.

    Args:
        function: gives float32 tensors; it writes them to those of its argument ``into`` where it gets that.
        axis: of the channels of `x`.
        x: any shape; taken in tiles where axis is 1.
        values: shape () or (C,); `function` gets them so that they broadcast.
        results: how many tensors `function` gives.
    """
    if axis != 1 or x.ndim < 3 or not helps((x,)) or not x.is_contiguous():
        return function(x, *(reference.along_axis(v, axis if v.ndim else None, x.ndim) for v in values))
    matrix = x.reshape(x.shape[0] * x.shape[1], -1)
    columns = [v.repeat(x.shape[0]).unsqueeze(1) if v.ndim else v for v in values]
    rows = max(1, TILE // matrix.shape[1])
    made = [torch.empty_like(matrix, dtype=torch.float32) for _ in range(results)]
    for start in range(0, len(matrix), rows):
        part = slice(start, start + rows)
        function(matrix[part], *(c[part] if c.ndim else c for c in columns), into=[whole[part] for whole in made])
    return tuple(each.view(x.shape) for each in made)
