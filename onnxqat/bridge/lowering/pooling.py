"""Pooling (ONNX versions 1 to 22).

With ``ceil_mode`` a window that would start in the right padding is left out, as in torch, onnxruntime and ONNX's
text since version 11.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional

from onnxqat.bridge.functional import shape_math
from onnxqat.bridge.importing.builder import Lowered, NodeView
from onnxqat.bridge.lowering.convolution import same_pads, spatial_rank, torch_padding
from onnxqat.bridge.lowering.reduction import reduced_maximum

# Not those of torch.nn.functional: these are closures, with which no module can be pickled.
MAXIMUM: dict[int, Any] = {1: torch.max_pool1d, 2: torch.max_pool2d, 3: torch.max_pool3d}
INDICES: dict[int, Any] = {
    1: torch.max_pool1d_with_indices,
    2: functional.max_pool2d_with_indices,
    3: functional.max_pool3d_with_indices,
}
AVERAGE: dict[int, Any] = {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d}

LARGEST = 2**31 - 1  # torch's pooling counts in 32 bits


class Window:
    """The attributes of a pooling node, defaults filled in."""

    def __init__(self, n: NodeView) -> None:
        self.rank = spatial_rank(n)
        if self.rank not in MAXIMUM:
            raise n.refuse(f"{self.rank} spatial dimensions")
        self.kernel: list[int] = n.attr("kernel_shape")
        if not self.kernel:
            raise n.refuse("kernel_shape is missing")
        self.strides: list[int] = n.attr("strides") or [1] * self.rank
        self.dilations: list[int] = n.attr("dilations") or [1] * self.rank
        self.pads: list[int] = n.attr("pads") or [0] * 2 * self.rank
        if max(map(abs, (*self.kernel, *self.strides, *self.dilations, *self.pads))) > LARGEST:
            raise n.refuse(f"an attribute above {LARGEST}")
        self.ceil = bool(n.attr("ceil_mode", 0))
        auto_pad = n.attr("auto_pad", "NOTSET")
        if auto_pad == "VALID":
            self.pads = [0] * 2 * self.rank
        self.same = {"SAME_UPPER": "upper", "SAME_LOWER": "lower"}.get(auto_pad, "")
        if self.same:
            self.ceil = False

    @property
    def fits_torch(self) -> bool:
        """Check whether torch's own pooling takes these pads: equal on both sides and at most half a window."""
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
    """Maximum over windows with any padding; of 8-bit integers as floats, which is exact."""
    grown = all_pads(x.shape[2:], kernel, strides, dilations, pads, same, ceil)
    wide = x if x.is_floating_point() else x.to(torch.float32)
    lowest = -math.inf if x.is_floating_point() else torch.iinfo(x.dtype).min
    padded = functional.pad(wide, torch_padding(grown), value=lowest)
    result: torch.Tensor = MAXIMUM[len(kernel)](padded, kernel, strides, 0, dilations)
    return result.to(x.dtype)


def max_pool_of_integers(x: torch.Tensor, rank: int, *arguments: Any) -> torch.Tensor:
    """Maximum of 8-bit integers, which torch pools as floats; exact."""
    result: torch.Tensor = MAXIMUM[rank](x.to(torch.float32), *arguments)
    return result.to(x.dtype)


def max_pool_indices(
    x: torch.Tensor,
    kernel: list[int],
    strides: list[int],
    dilations: list[int],
    pads: list[int],
    same: str,
    ceil: bool,
    column_major: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Maximum and its index in the flattened whole tensor, each plane of it row by row or column by column."""
    rank, sizes = len(kernel), x.shape[2:]
    grown = all_pads(sizes, kernel, strides, dilations, pads, same, ceil)
    wide = x if x.is_floating_point() else x.to(torch.float32)
    padded = functional.pad(wide, torch_padding(grown), value=-math.inf)
    values, flat = INDICES[rank](padded, kernel, strides, 0, dilations)
    places: list[torch.Tensor] = []
    for axis in reversed(range(rank)):
        length = padded.shape[axis + 2]
        place = flat % length - grown[axis]
        flat = torch.div(flat, length, rounding_mode="floor")
        # Where all of a window is -inf, its first element inside the input counts, not one of the padding.
        steps = torch.div(dilations[axis] - 1 - place, dilations[axis], rounding_mode="floor")
        places.insert(0, torch.where(place < 0, place + steps * dilations[axis], place))
    index = torch.zeros_like(places[0])
    for axis in reversed(range(rank)) if column_major else range(rank):
        index = index * sizes[axis] + places[axis]
    plane = math.prod(sizes)
    offset = torch.arange(x.shape[0] * x.shape[1], device=x.device) * plane
    return values.to(x.dtype), index + offset.reshape(x.shape[0], x.shape[1], *[1] * rank)


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


def root(powers: torch.Tensor, p: float) -> torch.Tensor:
    """The p-th root of sums of powers; the gradient at 0 is 0."""
    some = powers > 0
    return torch.where(some, torch.where(some, powers, torch.ones_like(powers)).pow(1.0 / p), powers)


def lp_norm_pool(
    x: torch.Tensor,
    p: float,
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
    return root(window_sums(powers, kernel, strides, dilations), p)


def unpool(
    x: torch.Tensor, index: torch.Tensor, kernel: list[int], strides: list[int], pads: list[int], shape: Any
) -> torch.Tensor:
    """Elements of `x` at their places in a tensor of zeros.

    The places count in the tensor of the size that kernel, strides and pads give, also where a larger `shape` is
    stated: the result is then filled up with zeros at the end of each axis, as in ONNX's reference. (onnxruntime counts
    them in the stated shape.)
    """
    rank = len(kernel)
    spatial = [
        (size - 1) * stride - begin - end + length
        for size, stride, begin, end, length in zip(x.shape[2:], strides, pads[:rank], pads[rank:], kernel, strict=True)
    ]
    inferred = [*x.shape[:2], *spatial]
    flat = x.new_zeros(math.prod(inferred))
    placed = flat.scatter(0, index.reshape(-1), x.reshape(-1)).reshape(inferred)
    if shape is None:
        return placed
    missing = [wanted - size for wanted, size in zip(shape, inferred, strict=True)]
    return functional.pad(placed, [pad for size in reversed(missing) for pad in (0, size)])


def max_pool(n: NodeView) -> Lowered:
    """MaxPool 1 to 22."""
    w = Window(n)
    x = n.tensor(0)
    everything = (w.kernel, w.strides, w.dilations, w.pads, w.same, w.ceil)
    if n.wants(1):
        both = n.call(max_pool_indices, x, *everything, bool(n.attr("storage_order", 0)))
        return n.item(both, 0), n.item(both, 1)
    if w.fits_torch:
        arguments = (w.kernel, w.strides, w.pads[: w.rank], w.dilations, w.ceil)
        if not n.is_float(0):
            return n.call(max_pool_of_integers, x, w.rank, *arguments)
        return n.call(MAXIMUM[w.rank], x, *arguments)
    return n.call(padded_max_pool, x, *everything)


def max_unpool(n: NodeView) -> Lowered:
    """MaxUnpool 9 to 22."""
    kernel = n.attr("kernel_shape")
    strides, pads = n.attr("strides") or [1] * len(kernel), n.attr("pads") or [0] * 2 * len(kernel)
    shape = n.ints(2) if n.has(2) else None
    return n.call(unpool, n.tensor(0), n.tensor(1), kernel, strides, pads, shape)


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
    """Maximum over all spatial axes; of nothing the lowest value."""
    return reduced_maximum(x, spatial_axes(x), True)


def norm_of_space(x: torch.Tensor, p: float) -> torch.Tensor:
    """p-norm over all spatial axes."""
    return root(x.abs().pow(p).sum(spatial_axes(x), keepdim=True), p)


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
    """GlobalLpPool 1 to 22."""
    return n.call(norm_of_space, n.tensor(0), n.attr("p", 2))


def lp_pool(n: NodeView) -> Lowered:
    """LpPool 1 to 22."""
    w = Window(n)
    p = n.attr("p", 2)
    return n.call(lp_norm_pool, n.tensor(0), p, w.kernel, w.strides, w.dilations, w.pads, w.same, w.ceil)
