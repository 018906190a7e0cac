"""Fake-quantize on CPU a tile at a time: the bits of :mod:`onnxqat.bridge.kernels.reference`, temporaries in the cache.

Plain torch makes a pass over memory and a temporary of the size of the tensor for each operation. On a large tensor
most of that time goes to memory: to its bandwidth, and to the pages that every fresh temporary touches first. Here
all operations run on a tile that stays in the cache before the next tile is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from onnxqat.bridge.kernels import layout
from onnxqat.bridge.kernels.reference import WIDE

TILE = 2**17
"""Elements of a tile for each thread: two to four tiles of float32 fill a second-level cache."""


class _Tile(NamedTuple):
    """Views of one tile: a piece of the flat tensor, or some of its rows with a column of parameters."""

    tensors: tuple[Tensor, ...]
    scale: Tensor
    zero_point: Tensor


def covers(x: Tensor, quant_min: int, quant_max: int, axis: int | None) -> bool:
    """Whether these functions compute `x`: large, on CPU, per tensor or per row, not traced and no subclass."""
    return (
        not torch.compiler.is_compiling()
        and x.device.type == "cpu"
        and type(x) in (Tensor, torch.nn.Parameter)
        and x.numel() >= 2 * TILE
        and quant_max - quant_min < WIDE
        and x.dtype is not torch.float64
        and (layout.is_dense(x) if axis is None else axis % x.ndim == 0 and x.is_contiguous())
    )


def fake_quantize(
    x: Tensor, scale: Tensor, zero_point: Tensor, quant_min: int, quant_max: int, axis: int | None
) -> Tensor:
    """:func:`onnxqat.bridge.kernels.reference.fake_quantize`, without a gradient, where :func:`covers` says yes."""
    result = torch.empty_like(x)
    buffer = None if x.dtype is torch.float32 else x.new_empty(_length(x, axis), dtype=torch.float32)
    for (values, wanted), s, zero in _tiles((x, result), scale, zero_point, axis):
        steps = wanted if buffer is None else _part(buffer, values).copy_(values)
        torch.div(values if buffer is None else steps, s, out=steps)
        steps.round_().add_(zero).clamp_(quant_min, quant_max).sub_(zero).mul_(s)
        if buffer is not None:
            wanted.copy_(steps)
    return result


def fake_quantize_backward(
    grad: Tensor,
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    quant_min: int,
    quant_max: int,
    axis: int | None,
    *,
    needs: tuple[bool, bool] = (True, True),
) -> tuple[Tensor | None, Tensor | None]:
    """:func:`onnxqat.bridge.kernels.reference.fake_quantize_backward`, where :func:`covers` says yes."""
    grad = layout.as_laid_out(grad, x)
    grad_x = torch.empty_like(x) if needs[0] else None
    sums: list[Tensor] = []
    first, second, third = (x.new_empty(_length(x, axis), dtype=torch.float32) for _ in range(3))
    outputs = () if grad_x is None else (grad_x,)
    for (values, given, *wanted), s, zero in _tiles((x, grad, *outputs), scale, zero_point, axis):
        steps, clamped, moved = (_part(buffer, values) for buffer in (first, second, third))
        torch.div(values if x.dtype is torch.float32 else steps.copy_(values), s, out=steps)
        torch.maximum(steps, quant_min - zero, out=clamped)
        torch.minimum(clamped, quant_max - zero, out=clamped)
        inside = steps.eq_(clamped)
        if wanted:
            torch.mul(given, inside, out=wanted[0])
        if needs[1]:
            torch.round(clamped, out=moved)
            moved.addcmul_(inside, clamped, value=-1.0).mul_(given)
            sums.append(moved.sum() if axis is None else moved.sum(1))
    if not needs[1]:
        return grad_x, None
    return grad_x, torch.stack(sums).sum() if axis is None else torch.cat(sums)


def _length(x: Tensor, axis: int | None) -> int:
    """Elements of the largest tile."""
    size = TILE * torch.get_num_threads()
    if axis is None:
        return min(size, x.numel())
    row = x.numel() // x.shape[0]
    return row * max(1, size // row)


def _part(buffer: Tensor, like: Tensor) -> Tensor:
    return buffer[: like.numel()].view(like.shape)


def _tiles(tensors: tuple[Tensor, ...], scale: Tensor, zero_point: Tensor, axis: int | None) -> Iterator[_Tile]:
    """The tiles of `tensors`, which are laid out alike; the zero point as float32."""
    x, zero = tensors[0], zero_point.to(torch.float32)
    length = _length(x, axis)
    if axis is None:
        for pieces in zip(*(torch.split(layout.flat(t), length) for t in tensors), strict=True):
            yield _Tile(pieces, scale, zero)
        return
    rows = length * x.shape[0] // x.numel()
    matrices = (t.view(x.shape[0], -1) for t in (*tensors, scale, zero))
    for *parts, s, z in zip(*(torch.split(m, rows) for m in matrices), strict=True):
        yield _Tile(tuple(parts), s, z)
