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

_ZERO = torch.zeros(())
_LEAST_POSITIVE = 2.0**-149
"""The smallest float32 above zero."""


def covers(x: Tensor, quant_min: int, quant_max: int, axis: int | None) -> bool:
    """Check whether these functions take `x`: large, on CPU, per tensor or per row, not traced and no subclass."""
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
    ends = _step_limits(zero_point, quant_min, quant_max, axis, least=0.0 if relu else None)
    factor = float(scale) if axis is None else None
    for (values, wanted), s, low, high in _tiles((x, result), (scale, *ends), axis):
        steps = wanted if exact else _view_like(buffer, values).copy_(values)
        torch.div(values if exact else steps, s, out=steps)
        _clamp(steps.round_(), low, high, out=steps)
        # A zero is added, as -0.0 steps are the code of zero: its value is 0.0.
        if factor is None:
            steps.add_(0.0).mul_(s)
        else:
            torch.add(_ZERO, steps, alpha=factor, out=steps)
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
    # Behind a Relu no gradient passes at zero, and the scale gets none there: the grid begins just above it.
    ends = _step_limits(zero_point, quant_min, quant_max, axis, least=_LEAST_POSITIVE if relu else None)
    tensors = (x, grad) if grad_x is None else (x, grad, grad_x)
    for (values, given, *wanted), s, low, high in _tiles(tensors, (scale, *ends), axis):
        steps, clamped, moved = (_view_like(buffer, values) for buffer in buffers)
        torch.div(values if exact else steps.copy_(values), s, out=steps)
        _clamp(steps, low, high, out=clamped)
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


def _step_limits(
    zero_point: Tensor, quant_min: int, quant_max: int, axis: int | None, *, least: float | None
) -> tuple[Any, Any]:
    """The first and last step, codes without zero point, neither below `least`: numbers, or tensors (C,)."""
    if axis is None:
        low, high = quant_min - float(zero_point), quant_max - float(zero_point)
        return (low, high) if least is None else (max(low, least), max(high, least))
    lows, highs = (end - zero_point.to(torch.float32) for end in (quant_min, quant_max))
    return (lows, highs) if least is None else (lows.clamp_min(least), highs.clamp_min(least))


def _clamp(steps: Tensor, low: Any, high: Any, *, out: Tensor) -> None:
    """``clamp(steps, low, high)``; with bounds that are tensors torch's own is not vectorized."""
    if isinstance(low, Tensor):
        torch.minimum(torch.maximum(steps, low, out=out), high, out=out)
    else:
        torch.clamp(steps, low, high, out=out)


def _length(x: Tensor, axis: int | None) -> int:
    """Elements of the largest tile."""
    size = TILE * torch.get_num_threads()
    if axis is None:
        return min(size, x.numel())
    row = x.numel() // x.shape[0]
    return row * max(1, size // row)


def _view_like(buffer: Tensor, like: Tensor) -> Tensor:
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
