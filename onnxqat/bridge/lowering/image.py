"""Operators that cut or put together images: Col2Im and CenterCropPad."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch.nn import functional

from onnxqat.bridge.functional import shape_math
from onnxqat.bridge.importing.builder import Lowered, NodeView
from onnxqat.bridge.lowering.convolution import torch_padding


def add_columns(
    x: torch.Tensor, image: Any, block: Any, dilations: list[int] | None, pads: list[int] | None, strides: Any
) -> torch.Tensor:
    """Col2Im: columns (N, C * prod(block), L) summed into images (N, C, *image), any number of spatial dimensions."""
    rank = len(image)
    dilations, strides, pads = dilations or [1] * rank, strides or [1] * rank, pads or [0] * 2 * rank
    padded = [size + pads[i] + pads[i + rank] for i, size in enumerate(image)]
    crop = torch_padding([-p for p in pads])
    if rank == 2 and (x.is_floating_point() or x.is_complex()):
        whole = functional.fold(x, tuple(padded), tuple(block), tuple(dilations), 0, tuple(strides))
        return functional.pad(whole, crop)
    counts = [
        (size - d * (k - 1) - 1) // s + 1 for size, k, d, s in zip(padded, block, dilations, strides, strict=True)
    ]
    size = 1
    for length in block:
        size = size * length
    columns = x.reshape(x.shape[0], x.shape[1] // size, size, *counts)
    whole = x.new_zeros([*columns.shape[:2], *padded])
    for tap, place in enumerate(itertools.product(*(range(k) for k in block))):
        where = [
            slice(p * d, p * d + (c - 1) * s + 1, s)
            for p, d, c, s in zip(place, dilations, counts, strides, strict=True)
        ]
        whole[(slice(None), slice(None), *where)] += columns[:, :, tap]
    return functional.pad(whole, crop)


def col2_im(n: NodeView) -> Lowered:
    """Col2Im 18."""
    image, block = n.ints(1), n.ints(2)
    return n.call(add_columns, n.tensor(0), image, block, n.attr("dilations"), n.attr("pads"), n.attr("strides"))


def fit_centered(x: torch.Tensor, sizes: Any, axes: list[int] | None) -> torch.Tensor:
    """CenterCropPad: cut or padded with zeros to `sizes`; an odd element is cut off, or added, at the end."""
    for axis, size in zip(range(x.dim()) if axes is None else axes, sizes, strict=True):
        axis, length = axis % x.dim(), x.shape[axis]
        if isinstance(length, int) and isinstance(size, int):
            added = size - length
            before = added // 2 if added > 0 else -(-added // 2)
            x = functional.pad(x, [0, 0] * (x.dim() - 1 - axis) + [before, added - before])
            continue
        # Without a branch on symbolic sizes: which element, if any, each one of the result takes.
        before = shape_math.maximum(size - length, 0) // 2 - shape_math.maximum(length - size, 0) // 2
        place = torch.arange(size, device=x.device) - before
        shape = [1] * x.dim()
        shape[axis] = -1
        inside = ((place >= 0) & (place < length)).reshape(shape)
        found = x.index_select(axis, place.clamp(0, length - 1))
        x = torch.where(inside, found, torch.zeros_like(found))
    return x


def center_crop_pad(n: NodeView) -> Lowered:
    """CenterCropPad 18."""
    return n.call(fit_centered, n.tensor(0), n.ints(1), n.attr("axes"))
