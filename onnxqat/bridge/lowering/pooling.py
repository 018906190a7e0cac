"""Pooling (ONNX versions 1 to 22).

With ``ceil_mode`` a window that would start in the right padding is left out, as in torch, onnxruntime and ONNX's
text since version 11.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional

from onnxqat.bridge import shape_math
from onnxqat.bridge.builder import Lowered, NodeView
from onnxqat.bridge.lowering.convolution import same_pads, spatial_rank, torch_padding

MAXIMUM: dict[int, Any] = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}
INDICES: dict[int, Any] = {
    1: torch.max_pool1d_with_indices,
    2: functional.max_pool2d_with_indices,
    3: functional.max_pool3d_with_indices,
}
AVERAGE: dict[int, Any] = {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d}


class Window:
    """The attributes of a pooling node, defaults filled in."""

    def __init__(self, n: NodeView) -> None:
        self.rank = spatial_rank(n)
        if self.rank not in MAXIMUM:
            raise n.refuse(f"{self.rank} spatial dimensions")
        self.kernel: list[int] = n.attr("kernel_shape")
        self.strides: list[int] = n.attr("strides") or [1] * self.rank
        self.dilations: list[int] = n.attr("dilations") or [1] * self.rank
        self.pads: list[int] = n.attr("pads") or [0] * 2 * self.rank
        self.ceil = bool(n.attr("ceil_mode", 0))
        auto_pad = n.attr("auto_pad", "NOTSET")
        if auto_pad == "VALID":
            self.pads = [0] * 2 * self.rank
        self.same = {"SAME_UPPER": "upper", "SAME_LOWER": "lower"}.get(auto_pad, "")
        if self.same:
            self.ceil = False

    @property
    def fits_torch(self) -> bool:
        """Whether torch's own pooling takes these pads: equal on both sides and at most half a window."""
        begins, ends = self.pads[: self.rank], self.pads[self.rank :]
        return (
            not self.same and begins == ends and all(0 <= 2 * p <= k for p, k in zip(begins, self.kernel, strict=True))
        )


def all_pads(
    sizes: Any, kernel: list[int], strides: list[int], dilations: list[int], pads: list[int], same: str, ceil: bool
) -> list[Any]:
    """Pads for spatial `sizes`, with SAME resolved and the right side grown to the last window of ``ceil_mode``."""
    half = len(kernel)
    if same:
        return same_pads(sizes, kernel, strides, dilations, same == "lower")
    grown = list(pads)
    if ceil:
        for axis in range(half):
            padded = sizes[axis] + pads[axis] + pads[axis + half]
            reach = dilations[axis] * (kernel[axis] - 1) + 1
            windows = -(-(padded - reach) // strides[axis]) + 1
            if (windows - 1) * strides[axis] >= sizes[axis] + pads[axis]:
                windows -= 1
            grown[axis + half] += shape_math.maximum(0, (windows - 1) * strides[axis] + reach - padded)
    return grown


def padded_max_pool(
    x: torch.Tensor,
    kernel: list[int],
    strides: list[int],
    dilations: list[int],
    pads: list[int],
    same: str,
    ceil: bool,
) -> torch.Tensor:
    """Maximum over windows with any padding."""
    grown = all_pads(x.shape[2:], kernel, strides, dilations, pads, same, ceil)
    lowest = -math.inf if x.is_floating_point() else torch.iinfo(x.dtype).min
    padded = functional.pad(x, torch_padding(grown), value=lowest)
    result: torch.Tensor = MAXIMUM[len(kernel)](padded, kernel, strides, 0, dilations)
    return result


def max_pool_of_integers(x: torch.Tensor, rank: int, *arguments: Any) -> torch.Tensor:
    """Maximum of 8-bit integers, which torch pools as floats; exact."""
    result: torch.Tensor = MAXIMUM[rank](x.to(torch.float32), *arguments)
    return result.to(x.dtype)


def max_pool_indices(
    x: torch.Tensor, kernel: list[int], strides: list[int], padding: list[int], dilations: list[int], ceil: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Maximum and its index in the flattened whole tensor."""
    values, indices = INDICES[len(kernel)](x, kernel, strides, padding, dilations, ceil)
    plane = math.prod(x.shape[2:])
    offset = torch.arange(x.shape[0] * x.shape[1], device=x.device) * plane
    return values, indices + offset.reshape(x.shape[0], x.shape[1], *[1] * len(kernel))


def window_sums(x: torch.Tensor, kernel: list[int], strides: list[int], dilations: list[int]) -> torch.Tensor:
    """Sum over each window, no padding."""
    convolve = {1: torch.conv1d, 2: torch.conv2d, 3: torch.conv3d}[len(kernel)]
    ones = torch.ones([1, 1, *kernel], dtype=x.dtype, device=x.device)
    planes = x.reshape(x.shape[0] * x.shape[1], 1, *x.shape[2:])
    sums = convolve(planes, ones, None, strides, 0, dilations)
    return sums.reshape(x.shape[0], x.shape[1], *sums.shape[2:])


def padded_average_pool(
    x: torch.Tensor,
    kernel: list[int],
    strides: list[int],
    dilations: list[int],
    pads: list[int],
    same: str,
    ceil: bool,
    include_pad: bool,
) -> torch.Tensor:
    """Mean over windows with any padding; what ``ceil_mode`` adds on the right never counts."""
    grown = all_pads(x.shape[2:], kernel, strides, dilations, pads, same, ceil)
    counted = torch.ones([1, 1, *x.shape[2:]], dtype=x.dtype, device=x.device)
    if include_pad:
        stated = grown if same else pads
        counted = functional.pad(counted, torch_padding(stated), value=1.0)
        rest = [g - s for g, s in zip(grown, stated, strict=True)]
        counted = functional.pad(counted, torch_padding(rest))
    else:
        counted = functional.pad(counted, torch_padding(grown))
    sums = window_sums(functional.pad(x, torch_padding(grown)), kernel, strides, dilations)
    return sums / window_sums(counted, kernel, strides, dilations)


def lp_norm_pool(
    x: torch.Tensor,
    p: int,
    kernel: list[int],
    strides: list[int],
    dilations: list[int],
    pads: list[int],
    same: str,
    ceil: bool,
) -> torch.Tensor:
    """p-norm over windows, padded with zeros."""
    grown = all_pads(x.shape[2:], kernel, strides, dilations, pads, same, ceil)
    powers = functional.pad(x.abs().pow(p), torch_padding(grown))
    return window_sums(powers, kernel, strides, dilations).pow(1.0 / p)


def region_maxima(x: torch.Tensor, rois: torch.Tensor, pooled: list[int], scale: float) -> torch.Tensor:
    """Maximum over the bins of each region (batch index, x1, y1, x2, y2), borders rounded as in onnxruntime."""
    results = []
    height, width = x.shape[2:]
    for roi in rois.tolist():
        start_x, start_y, end_x, end_y = (math.floor(c * scale + 0.5) for c in roi[1:])
        bin_h = max(end_y - start_y + 1, 1) / pooled[0]
        bin_w = max(end_x - start_x + 1, 1) / pooled[1]
        rows = []
        for i in range(pooled[0]):
            top = min(max(math.floor(i * bin_h) + start_y, 0), height)
            bottom = min(max(math.ceil((i + 1) * bin_h) + start_y, 0), height)
            for j in range(pooled[1]):
                left = min(max(math.floor(j * bin_w) + start_x, 0), width)
                right = min(max(math.ceil((j + 1) * bin_w) + start_x, 0), width)
                part = x[int(roi[0]), :, top:bottom, left:right]
                rows.append(part.amax((1, 2)) if part.numel() else x.new_zeros(x.shape[1]))
        results.append(torch.stack(rows, 1).reshape(x.shape[1], *pooled))
    return torch.stack(results) if results else x.new_zeros(0, x.shape[1], *pooled)


def max_pool(n: NodeView) -> Lowered:
    """MaxPool 1 to 22; indices only with pads that torch takes, row major."""
    w = Window(n)
    x = n.tensor(0)
    if n.wants(1):
        if not w.fits_torch or n.attr("storage_order", 0):
            raise n.refuse("Indices with unequal pads or in column-major order")
        both = n.call(max_pool_indices, x, w.kernel, w.strides, w.pads[: w.rank], w.dilations, w.ceil)
        return n.item(both, 0), n.item(both, 1)
    if w.fits_torch:
        arguments = (w.kernel, w.strides, w.pads[: w.rank], w.dilations, w.ceil)
        if not n.is_float(0):
            return n.call(max_pool_of_integers, x, w.rank, *arguments)
        return n.call(MAXIMUM[w.rank], x, *arguments)
    if not n.is_float(0):
        raise n.refuse("integers with unequal pads")
    return n.call(padded_max_pool, x, w.kernel, w.strides, w.dilations, w.pads, w.same, w.ceil)


def average_pool(n: NodeView) -> Lowered:
    """AveragePool 1 to 22."""
    w = Window(n)
    include = bool(n.attr("count_include_pad", 0))
    if w.fits_torch and not w.ceil and set(w.dilations) == {1}:
        return n.call(AVERAGE[w.rank], n.tensor(0), w.kernel, w.strides, w.pads[: w.rank], False, include)
    return n.call(padded_average_pool, n.tensor(0), w.kernel, w.strides, w.dilations, w.pads, w.same, w.ceil, include)


def spatial_axes(x: torch.Tensor) -> list[int]:
    """All axes but batch and channel."""
    return list(range(2, x.dim()))


def mean_of_space(x: torch.Tensor) -> torch.Tensor:
    """Mean over all spatial axes."""
    return x.mean(spatial_axes(x), keepdim=True)


def maximum_of_space(x: torch.Tensor) -> torch.Tensor:
    """Maximum over all spatial axes."""
    return x.amax(spatial_axes(x), keepdim=True)


def norm_of_space(x: torch.Tensor, p: int) -> torch.Tensor:
    """p-norm over all spatial axes."""
    return x.abs().pow(p).sum(spatial_axes(x), keepdim=True).pow(1.0 / p)


def global_average_pool(n: NodeView) -> Lowered:
    """GlobalAveragePool 1 to 22."""
    rank = n.rank(0)
    if rank is None:
        return n.call(mean_of_space, n.tensor(0))
    return n.call(torch.mean, n.tensor(0), list(range(2, rank)), True)


def global_max_pool(n: NodeView) -> Lowered:
    """GlobalMaxPool 1 to 22."""
    return n.call(maximum_of_space, n.tensor(0))


def global_lp_pool(n: NodeView) -> Lowered:
    """GlobalLpPool 2 to 22."""
    return n.call(norm_of_space, n.tensor(0), int(n.attr("p", 2)))


def lp_pool(n: NodeView) -> Lowered:
    """LpPool 2 to 22."""
    w = Window(n)
    p = int(n.attr("p", 2))
    return n.call(lp_norm_pool, n.tensor(0), p, w.kernel, w.strides, w.dilations, w.pads, w.same, w.ceil)


def max_roi_pool(n: NodeView) -> Lowered:
    """MaxRoiPool 1 to 22; the regions are read at run time."""
    return n.call(region_maxima, n.tensor(0), n.tensor(1), n.attr("pooled_shape"), n.attr("spatial_scale", 1.0))
