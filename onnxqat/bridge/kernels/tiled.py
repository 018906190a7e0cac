"""Fake-quantize on CPU a tile at a time: the bits of :mod:`onnxqat.bridge.kernels.reference`, temporaries in the cache.

Plain torch makes a pass over memory and a temporary of the size of the tensor for each operation. On a large tensor
most of that time goes to memory: to its bandwidth, and to the pages that every fresh temporary touches first. Here
all operations run on a tile that stays in the cache before the next tile is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from onnxqat.bridge.kernels import layout
from onnxqat.bridge.kernels.reference import WIDE

TILE = 2**17
"""Elements of a tile for each thread: two to four tiles of float32 fill a second-level cache."""


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
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    quant_min: int,
    quant_max: int,
    axis: int | None,
    *,
    relu: bool = False,
) -> Tensor:
    """:func:`onnxqat.bridge.kernels.reference.fake_quantize`, without a gradient, where :func:`covers` says yes."""
    result, exact = torch.empty_like(x), x.dtype is torch.float32
    buffer = x.new_empty(0 if exact else _length(x, axis), dtype=torch.float32)
    zero = zero_point.to(torch.float32)
    for (values, wanted), s, z in _tiles((x, result), (scale, zero), axis):
        steps = wanted if exact else _part(buffer, values).copy_(values)
        torch.div(values if exact else steps, s, out=steps)
        if relu:
            steps.clamp_min_(0.0)
        steps.round_().add_(z).clamp_(quant_min, quant_max).sub_(z).mul_(s)
        if not exact:
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
    relu: bool = False,
    needs: tuple[bool, bool] = (True, True),
) -> tuple[Tensor | None, Tensor | None]:
    """:func:`onnxqat.bridge.kernels.reference.fake_quantize_backward`, where :func:`covers` says yes."""
    grad, exact = layout.as_laid_out(grad, x), x.dtype is torch.float32
    grad_x = torch.empty_like(x) if needs[0] else None
    sums: list[Tensor] = []
    buffers = [x.new_empty(_length(x, axis), dtype=torch.float32) for _ in range(3)]
    zero = zero_point.to(torch.float32)
    ends = (quant_min - zero, quant_max - zero)
    tensors = (x, grad) if grad_x is None else (x, grad, grad_x)
    for (values, given, *wanted), s, low, high in _tiles(tensors, (scale, *ends), axis):
        steps, clamped, moved = (_part(buffer, values) for buffer in buffers)
        torch.div(values if exact else steps.copy_(values), s, out=steps)
        if relu:
            steps.clamp_min_(0.0)
        torch.maximum(steps, low, out=clamped)
        torch.minimum(clamped, high, out=clamped)
        inside = steps.eq_(clamped)
        if wanted:
            torch.mul(given, inside, out=wanted[0])
            if relu:
                torch.ops.aten.threshold_backward.grad_input(wanted[0], values, 0, grad_input=wanted[0])
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
    return buffer.view(like.shape) if buffer.shape == like.shape else buffer[: like.numel()].view(like.shape)


def _tiles(tensors: tuple[Tensor, ...], parameters: tuple[Tensor, ...], axis: int | None) -> Iterator[tuple[Any, ...]]:
    """The tiles of `tensors`, which are laid out alike: pieces of flat ones, or rows; and the parameters of each."""
    x = tensors[0]
    length = _length(x, axis)
    if axis is None:
        for pieces in zip(*(torch.split(layout.flat(t), length) for t in tensors), strict=True):
            yield pieces, *parameters
        return
    rows, count = length * x.shape[0] // x.numel(), len(tensors)
    matrices = (t.view(x.shape[0], -1) for t in (*tensors, *parameters))
    for parts in zip(*(torch.split(m, rows) for m in matrices), strict=True):
        yield parts[:count], *parts[count:]
