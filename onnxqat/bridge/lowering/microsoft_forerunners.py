"""com.microsoft operators that exporters used before ONNX had the like, as onnxruntime's CPU kernels compute them."""

from __future__ import annotations

from typing import Any

import torch

from onnxqat.bridge.importing.builder import Lowered, NodeView
from onnxqat.bridge.lowering import grid_sample, indexing, pooling, shape
from onnxqat.bridge.lowering.unique import unique_elements

METRICS = ("euclidean", "sqeuclidean")


def distances(a: torch.Tensor, b: torch.Tensor, squared: bool) -> torch.Tensor:
    """Euclidean distance of each row of `a` (M, K) from each row of `b` (N, K): (M, N); gradient 0 where it is 0."""
    squares = (a.unsqueeze(1) - b.unsqueeze(0)).square().sum(-1)
    return squares if squared else pooling.root(squares, 2.0)


def com_microsoft_c_dist(n: NodeView) -> Lowered:
    """CDist 1 with the metrics that onnxruntime has."""
    metric = n.attr("metric", "sqeuclidean")
    if metric not in METRICS:
        raise n.refuse(f"metric {metric}")
    return n.call(distances, n.tensor(0), n.tensor(1), metric == "sqeuclidean")


def _crop_positions(start: torch.Tensor, end: torch.Tensor, size: Any, count: Any) -> torch.Tensor:
    """Places along one axis of `size` elements that `count` samples of each region take: (regions, count)."""
    if count == 1:
        middle: torch.Tensor = 0.5 * (start + end) * (size - 1)
        return middle.unsqueeze(1)
    numbers = torch.arange(count, dtype=start.dtype, device=start.device)
    step = (end - start) * (size - 1) / (count - 1)
    places: torch.Tensor = (start * (size - 1)).unsqueeze(1) + numbers * step.unsqueeze(1)
    return places


def crop_and_resize(
    x: torch.Tensor, regions: torch.Tensor, batch: torch.Tensor, size: Any, nearest: bool, outside: float
) -> torch.Tensor:
    """Crops of `x` (N, C, H, W) at `regions` (R, 4) of corners y1, x1, y2, x2 between 0 and 1: (R, C, *size).

    Corners lie on the middle of the elements; what lies outside the image is `outside`.
    """
    height, width = x.shape[2:]
    down = _crop_positions(regions[:, 0], regions[:, 2], height, size[0]).unsqueeze(2)
    right = _crop_positions(regions[:, 1], regions[:, 3], width, size[1]).unsqueeze(1)
    image = batch.to(torch.int64).reshape(-1, 1, 1)

    def at(y: torch.Tensor, x_: torch.Tensor) -> torch.Tensor:
        rows, columns = y.to(torch.int64).clamp(0, height - 1), x_.to(torch.int64).clamp(0, width - 1)
        return x[image, :, rows, columns].permute(0, 3, 1, 2)

    if nearest:
        found = at(torch.floor(down + 0.5), torch.floor(right + 0.5))
    else:
        low, first = torch.floor(down), torch.floor(right)
        lower, along = (down - low).unsqueeze(1), (right - first).unsqueeze(1)
        top = at(low, first) * (1 - along) + at(low, torch.ceil(right)) * along
        bottom = at(torch.ceil(down), first) * (1 - along) + at(torch.ceil(down), torch.ceil(right)) * along
        found = top * (1 - lower) + bottom * lower
    inside = (down >= 0) & (down <= height - 1) & (right >= 0) & (right <= width - 1)
    return torch.where(inside.unsqueeze(1), found, torch.full_like(found, outside))


def com_microsoft_crop_and_resize(n: NodeView) -> Lowered:
    """CropAndResize 1."""
    mode = n.attr("mode", "bilinear")
    if mode not in ("bilinear", "nearest"):
        raise n.refuse(f"mode {mode}")
    outside = n.attr("extrapolation_value", 0.0)
    return n.call(crop_and_resize, n.tensor(0), n.tensor(1), n.tensor(2), n.ints(3), mode == "nearest", outside)


def com_microsoft_expand_dims(n: NodeView) -> Lowered:
    """ExpandDims 1."""
    return n.call(torch.unsqueeze, n.tensor(0), n.scalar(1))


def com_microsoft_gather_nd(n: NodeView) -> Lowered:
    """GatherND 1: without batch dimensions."""
    return n.call(indexing.gather_points, n.tensor(0), n.tensor(1), 0)


def com_microsoft_grid_sample(n: NodeView) -> Lowered:
    """GridSample 1: what ONNX's version 16 is."""
    return grid_sample.grid_sample(n)


def inverse(x: torch.Tensor) -> torch.Tensor:
    """Inverses of the matrices in the last two axes; in float32 where the type is narrower."""
    wide = x if x.dtype is torch.float64 else x.to(torch.float32)
    # The form that checks nothing: it reads nothing back from a device.
    found: torch.Tensor = torch.linalg.inv_ex(wide).inverse
    return found.to(x.dtype)


def com_microsoft_inverse(n: NodeView) -> Lowered:
    """Inverse 1."""
    return n.call(inverse, n.tensor(0))


def com_microsoft_pad(n: NodeView) -> Lowered:
    """Pad 1; ``pads`` may have a first axis of one."""
    known = n.static(2)
    value: Any = 0
    if n.has(2):
        value = n.tensor(2) if known is None else known.reshape(()).item()
    return n.call(shape.pad_any, n.tensor(0), n.ints(1), n.attr("mode", "constant"), value)


def com_microsoft_trilu(n: NodeView) -> Lowered:
    """Trilu 1: what ONNX's version 14 is."""
    return indexing.trilu(n)


def com_microsoft_unfold_tensor(n: NodeView) -> Lowered:
    """UnfoldTensor 1: the windows of one axis, along a new last axis."""
    return n.method("unfold", n.tensor(0), n.attr("dim", -1), n.attr("size"), n.attr("step", 1))


def com_microsoft_unique(n: NodeView) -> Lowered:
    """Unique 1: in the order of the first appearance, with the place of each element and counts."""
    four = n.call(unique_elements, n.tensor(0), None, False)
    return tuple(n.item(four, place) if n.wants(i) else None for i, place in enumerate((0, 2, 3)))
