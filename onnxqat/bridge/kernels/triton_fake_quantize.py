"""Fake-quantize as fused Triton kernels: the bits of :mod:`onnxqat.bridge.kernels.reference` in one pass each way.

Forward reads `x` and writes ``x'``. Backward reads `x` and the gradient once, writes the gradient of `x` and one
partial sum a block; a second reduction adds these up, in an order that does not change from run to run. Tensors that
are contiguous or channels_last are not copied.

Import this module only where Triton can be imported. Under ``TRITON_INTERPRET=1`` the kernels run on CPU tensors.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
import triton
from torch import Tensor

from onnxqat.bridge.kernels import layout, triton_kernels
from onnxqat.bridge.kernels.reference import WIDE

FORWARD_BLOCK = 2048
BACKWARD_BLOCK = 2048
CHANNEL_BLOCK = 64
"""Most channels in a block of a tensor whose channels lie next to each other in memory."""


def fake_quantize(
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    quant_min: int,
    quant_max: int,
    axis: int | None,
    *,
    relu: bool = False,
    raised_to: int = 0,
) -> Tensor:
    """:func:`onnxqat.bridge.kernels.reference.fake_quantize` in one kernel; on CUDA, or interpreted.

    With `raised_to` of :func:`onnxqat.bridge.kernels.reference.raised` of `scale` to so many bits.
    """
    arguments = (x, scale.contiguous(), zero_point.contiguous(), quant_min, quant_max, axis, relu, raised_to)
    # Traced, the kernel has to be an operator; called, the way through the dispatcher costs more than the launch.
    if torch.compiler.is_compiling():
        return cast(Tensor, _forward_op(*arguments))
    with _device_of(x):
        return launch_forward(*arguments)


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
    raised_to: int = 0,
    factor: float = 1.0,
    needs: tuple[bool, bool] = (True, True),
) -> tuple[Tensor | None, Tensor | None]:
    """:func:`onnxqat.bridge.kernels.reference.fake_quantize_backward` in one kernel and the sum of its blocks.

    The gradient of the scale is multiplied by `factor`; `raised_to` as in :func:`fake_quantize`.
    """
    grid = (scale.contiguous(), zero_point.contiguous(), quant_min, quant_max, axis)
    arguments = (grad, x, *grid, relu, raised_to, factor, *needs)
    if torch.compiler.is_compiling():
        grad_x, sums = _backward_op(*arguments)
    else:
        with _device_of(x):
            grad_x, sums = launch_backward(*arguments)
    return (grad_x if needs[0] else None), (sums.sum(-1) if needs[1] else None)


def _device_of(x: Tensor) -> AbstractContextManager[Any]:
    """Kernels start on the current device, which may be another one than that of `x`."""
    elsewhere = x.is_cuda and x.get_device() != torch.cuda.current_device()
    return torch.cuda.device(x.device) if elsewhere else nullcontext()


def launch_forward(
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    quant_min: int,
    quant_max: int,
    axis: int | None,
    relu: bool,
    raised_to: int,
) -> Tensor:
    """Launch the kernel of :func:`fake_quantize`, without a gradient and untraced."""
    x = layout.dense(x)
    y = torch.empty_like(x)
    channels, stride = _channels(x, axis)
    count = x.numel()
    if count:
        _launcher(triton_kernels.forward)[(triton.cdiv(count, FORWARD_BLOCK),)](
            x,
            y,
            scale,
            zero_point,
            count,
            channels,
            stride,
            QUANT_MIN=quant_min,
            QUANT_MAX=quant_max,
            PER_CHANNEL=axis is not None,
            WIDE_GRID=quant_max - quant_min >= WIDE,
            RELU=relu,
            RAISED_TO=raised_to,
            BLOCK=FORWARD_BLOCK,
        )
    return y


def launch_backward(
    grad: Tensor,
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    quant_min: int,
    quant_max: int,
    axis: int | None,
    relu: bool,
    raised_to: int,
    factor: float,
    needs_x: bool,
    needs_scale: bool,
) -> tuple[Tensor, Tensor]:
    """Gradient of `x` and partial sums of the scale's, (blocks,) or (C, blocks); of no element where not needed."""
    x = layout.dense(x)
    grad = layout.as_laid_out(grad, x)
    grad_x = torch.empty_like(x) if needs_x else x.new_empty(0)
    count = x.numel()
    if not count:
        return grad_x, scale.new_zeros((*scale.shape, 1))
    channels, stride = _channels(x, axis)
    rest = count // channels
    lanes, block = _tile(channels, stride, rest)
    blocks = triton.cdiv(rest, block)
    sums = scale.new_empty((*scale.shape, blocks) if needs_scale else (0,))
    tensors = (grad, x, scale, zero_point, grad_x, sums)
    settings = {"QUANT_MIN": quant_min, "QUANT_MAX": quant_max, "RELU": relu, "RAISED_TO": raised_to}
    settings |= {"NEEDS_X": needs_x, "NEEDS_SCALE": needs_scale}
    if axis is None:
        _launcher(triton_kernels.backward)[(blocks,)](*tensors, count, factor, **settings, BLOCK=block)
    else:
        _launcher(triton_kernels.backward_of_channels)[(triton.cdiv(channels, lanes) * blocks,)](
            *tensors,
            channels,
            stride,
            rest,
            blocks,
            factor,
            **settings,
            OUTERMOST=bool(rest == stride),
            CHANNELS=lanes,
            BLOCK=block,
        )
    return grad_x, sums


_forward_op = torch.library.triton_op("onnxqat::fake_quantize", launch_forward, mutates_args=())
_backward_op = torch.library.triton_op("onnxqat::fake_quantize_backward", launch_backward, mutates_args=())


def _launcher(kernel: Any) -> Any:
    """`kernel` so that a compiler sees it as an operator of the graph; as it is where nothing is traced."""
    return torch.library.wrap_triton(kernel) if torch.compiler.is_compiling() else kernel


def _channels(x: Tensor, axis: int | None) -> tuple[int, int]:
    """Number of channels, and how far two of them are apart in memory."""
    if axis is None:
        return 1, 1
    return (x.shape[axis], x.stride(axis)) if x.shape[axis] > 1 else (1, x.numel())


def _tile(channels: int, stride: int, rest: int) -> tuple[int, int]:
    """Channels in a block, elements of each: powers of two, of which the product is the size of a block."""
    if channels == 1:
        return 1, BACKWARD_BLOCK
    if stride == 1:
        lanes = _power_of_two(channels, CHANNEL_BLOCK)
        return lanes, BACKWARD_BLOCK // lanes
    block = _power_of_two(rest, BACKWARD_BLOCK)
    return _power_of_two(channels, BACKWARD_BLOCK // block), block


def _power_of_two(least: int, most: int) -> int:
    """The smallest power of two that is not below `least`, and at most `most`, which is one; compares only."""
    power = 1
    while power < least and power < most:
        power *= 2
    return power
