"""Conv and ConvTranspose (ONNX versions 1 to 22), one to three spatial dimensions, and DeformConv (any number)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional

from onnxqat.bridge.functional import shape_math
from onnxqat.bridge.importing.builder import Lowered, NodeView
from onnxqat.bridge.lowering.grid_sample import sample_positions

CONVOLUTIONS = {1: torch.conv1d, 2: torch.conv2d, 3: torch.conv3d}
TRANSPOSED = {1: torch.conv_transpose1d, 2: torch.conv_transpose2d, 3: torch.conv_transpose3d}


def torch_padding(pads: list[int]) -> list[int]:
    """ONNX pads (all begins, then all ends) in the order of ``torch.nn.functional.pad`` (last axis first)."""
    half = len(pads) // 2
    return [p for axis in reversed(range(half)) for p in (pads[axis], pads[axis + half])]


def same_pads(sizes: Any, kernel: list[int], strides: list[int], dilations: list[int], lower: bool) -> list[Any]:
    """Pads of ``auto_pad`` SAME_UPPER or SAME_LOWER for spatial `sizes`: all begins, then all ends."""
    begins, ends = [], []
    for size, k, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        total = shape_math.maximum(0, ((size + stride - 1) // stride - 1) * stride + (k - 1) * dilation + 1 - size)
        small, large = total // 2, total - total // 2
        begins.append(large if lower else small)
        ends.append(small if lower else large)
    return begins + ends


def convolve_same(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    strides: list[int],
    dilations: list[int],
    groups: int,
    lower: bool,
) -> torch.Tensor:
    """Convolution with SAME padding, which depends on the size of the input."""
    pads = same_pads(x.shape[2:], list(weight.shape[2:]), strides, dilations, lower)
    padded = functional.pad(x, torch_padding(pads))
    return CONVOLUTIONS[x.dim() - 2](padded, weight, bias, strides, 0, dilations, groups)


def transpose_convolve(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    strides: list[int],
    crop: list[int],
    output_padding: list[int],
    groups: int,
    dilations: list[int],
) -> torch.Tensor:
    """Transposed convolution; `crop` (ONNX pads, may be negative or unequal) is cut off the full result."""
    full = TRANSPOSED[x.dim() - 2](x, weight, bias, strides, 0, 0, groups, dilations)
    half = len(crop) // 2
    ends = [crop[half + i] - output_padding[i] for i in range(half)]
    grown = functional.pad(full, torch_padding([-c for c in crop[:half]] + [-e for e in ends]))
    if bias is not None and any(e < 0 for e in ends + list(crop[:half])):
        shape = [1, -1] + [1] * half
        bare = TRANSPOSED[x.dim() - 2](x, weight, None, strides, 0, 0, groups, dilations)
        grown = functional.pad(bare, torch_padding([-c for c in crop[:half]] + [-e for e in ends])) + bias.reshape(
            shape
        )
    return grown


def spatial_rank(n: NodeView) -> int:
    """Number of spatial dimensions, from whatever states it."""
    kernel = n.attr("kernel_shape")
    if kernel:
        return len(kernel)
    for index in (1, 0):
        rank = n.rank(index) if n.has(index) else None
        if rank is not None:
            return rank - 2
    raise n.refuse("the number of spatial dimensions is unknown")


def conv(n: NodeView) -> Lowered:
    """Conv 1 to 22."""
    rank = spatial_rank(n)
    if rank not in CONVOLUTIONS:
        raise n.refuse(f"{rank} spatial dimensions")
    strides, dilations = n.attr("strides") or [1] * rank, n.attr("dilations") or [1] * rank
    pads, groups, auto_pad = n.attr("pads") or [0] * 2 * rank, n.attr("group", 1), n.attr("auto_pad", "NOTSET")
    x, weight, bias = n.tensor(0), n.tensor(1), n.optional(2)
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        return n.call(convolve_same, x, weight, bias, strides, dilations, groups, auto_pad == "SAME_LOWER")
    if auto_pad == "VALID":
        pads = [0] * 2 * rank
    if pads[:rank] != pads[rank:] or min(pads, default=0) < 0:
        x = n.call(functional.pad, x, torch_padding(pads))
        pads = [0] * 2 * rank
    return n.call(CONVOLUTIONS[rank], x, weight, bias, strides, pads[:rank], dilations, groups)


def conv_transpose(n: NodeView) -> Lowered:
    """ConvTranspose 1 to 22; ``auto_pad`` SAME and ``output_shape`` need static sizes."""
    rank = spatial_rank(n)
    if rank not in TRANSPOSED:
        raise n.refuse(f"{rank} spatial dimensions")
    strides, dilations = n.attr("strides") or [1] * rank, n.attr("dilations") or [1] * rank
    pads, groups = n.attr("pads") or [0] * 2 * rank, n.attr("group", 1)
    extra, auto_pad = n.attr("output_padding") or [0] * rank, n.attr("auto_pad", "NOTSET")
    if auto_pad == "VALID":
        pads = [0] * 2 * rank
    if n.attr("output_shape") or auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        pads = _pads_of_output_shape(n, rank, strides, dilations, extra, auto_pad)
    x, weight, bias = n.tensor(0), n.tensor(1), n.optional(2)
    fits = all(e < max(s, d) for e, s, d in zip(extra, strides, dilations, strict=True))
    if pads[:rank] == pads[rank:] and min(pads) >= 0 and fits:
        return n.call(TRANSPOSED[rank], x, weight, bias, strides, pads[:rank], extra, groups, dilations)
    return n.call(transpose_convolve, x, weight, bias, strides, pads, extra, groups, dilations)


def _pads_of_output_shape(
    n: NodeView, rank: int, strides: list[int], dilations: list[int], extra: list[int], auto_pad: str
) -> list[int]:
    """Return the pads of a ConvTranspose, begins then ends, that give `output_shape`, or strides times the input.

    Total = stride (size - 1) + reach - wanted, as ONNX's formula; a negative total crops at the end.
    """
    dims, kernel = n.dims(0), n.attr("kernel_shape") or list((n.dims(1) or ())[2:])
    if len(kernel) != rank or None in kernel:
        raise n.refuse("the kernel's size is unknown")
    wanted = n.attr("output_shape")
    begins, ends = [], []
    for axis in range(rank):
        size = None if dims is None else dims[axis + 2]
        reach = (kernel[axis] - 1) * dilations[axis] + 1 + extra[axis]
        if not wanted:
            total = reach - strides[axis]
        elif size is None:
            raise n.refuse("output_shape with an input size that is unknown")
        else:
            total = strides[axis] * (size - 1) + reach - wanted[-rank:][axis]
        # As onnxruntime: the odd element goes to the end for SAME_UPPER, else to the begin; missing ones are zeros at the end.
        shared = max(total, 0)
        larger = shared - shared // 2
        begins.append(shared // 2 if auto_pad == "SAME_UPPER" else larger)
        ends.append(larger if auto_pad == "SAME_UPPER" else shared // 2)
        if wanted and total < 0:
            ends[-1] = total
    return begins + ends


def _grid_along(axis: int, lengths: Any, step: int, device: torch.device) -> torch.Tensor:
    """Place along one axis, `step` apart, of each element of a grid of `lengths`, flattened."""
    shape = [1] * len(lengths)
    shape[axis] = -1
    places = torch.arange(lengths[axis], device=device, dtype=torch.float32) * step
    return places.reshape(shape).expand(*lengths).reshape(-1)


def deform_convolve(
    x: torch.Tensor,
    weight: torch.Tensor,
    offset: torch.Tensor,
    bias: torch.Tensor | None,
    mask: torch.Tensor | None,
    strides: list[int] | None,
    pads: list[int] | None,
    dilations: list[int] | None,
    groups: int,
    offset_groups: int,
) -> torch.Tensor:
    """Deformable convolution: every tap reads the input, linearly interpolated, at a place moved by `offset`.

    Args:
        x: (N, C, d1, ..., dr).
        weight: (out channels, C / groups, k1, ..., kr).
        offset: (N, offset_groups * k1 * ... * kr * r, o1, ..., or).
        bias: (out channels,).
        mask: factor of each tap, (N, offset_groups * k1 * ... * kr, o1, ..., or).
        strides: along each axis, None for 1.
        pads: all begins, then all ends, None for 0; how far they reach is in the shape of `offset`.
        dilations: along each axis, None for 1.
        groups: of channels for the weight.
        offset_groups: of channels that move alike.
    """
    rank, kernel, out = x.dim() - 2, weight.shape[2:], offset.shape[2:]
    taps, images = math.prod(kernel), x.shape[0] * offset_groups
    wide = x if x.dtype is torch.float64 else x.to(torch.float32)
    shifts = offset.to(wide.dtype).reshape(images, taps, rank, -1)
    positions = []
    for axis in range(rank):
        tap = _grid_along(axis, kernel, (dilations or [1] * rank)[axis], x.device)
        place = _grid_along(axis, out, (strides or [1] * rank)[axis], x.device) - (pads or [0] * rank)[axis]
        positions.append((shifts[:, :, axis] + (tap[:, None] + place)).flatten(1))
    grouped = wide.reshape(images, x.shape[1] // offset_groups, *x.shape[2:])
    columns = sample_positions(grouped, positions, "linear")
    if mask is not None:
        columns = columns * mask.to(wide.dtype).reshape(images, 1, -1)
    columns = columns.reshape(x.shape[0], groups, x.shape[1] // groups * taps, -1)
    matrix = weight.to(wide.dtype).reshape(groups, weight.shape[0] // groups, -1)
    result = torch.matmul(matrix, columns).reshape(x.shape[0], weight.shape[0], *out)
    if bias is not None:
        result = result + bias.to(wide.dtype).reshape([-1] + [1] * rank)
    return result.to(x.dtype)


def deform_conv(n: NodeView) -> Lowered:
    """DeformConv 19 and 22."""
    lists = [n.attr(name) for name in ("strides", "pads", "dilations")]
    groups = int(n.attr("group", 1)), int(n.attr("offset_group", 1))
    tensors = n.tensor(0), n.tensor(1), n.tensor(2), n.optional(3), n.optional(4)
    return n.call(deform_convolve, *tensors, *lists, *groups)
