"""Pooling over regions (RoiAlign, MaxRoiPool) and choosing regions (NonMaxSuppression)."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch

from onnxqat.bridge.importing.builder import Lowered, NodeView

CHUNK = 2**22  # elements that are gathered at a time


@dataclasses.dataclass(frozen=True)
class Align:
    """The attributes of a RoiAlign."""

    height: int
    width: int
    ratio: int
    scale: float
    half_pixel: bool
    maximum: bool


def _axis_samples(
    start: torch.Tensor, end: torch.Tensor, bins: int, size: Any, options: Align, samples: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return sampling points of regions along one axis: low and high element, weight of the high one, valid, counted.

    All of shape (regions, bins * samples); a region that needs fewer samples per bin does not count the others.
    """
    length = end - start
    if not options.half_pixel:
        length = length.clamp(min=1.0)
    step = length / bins
    count = torch.full_like(step, options.ratio) if options.ratio > 0 else torch.ceil(step)
    number = torch.arange(samples, dtype=start.dtype, device=start.device)
    places = torch.arange(bins, dtype=start.dtype, device=start.device).reshape(1, -1, 1)
    inner = (number + 0.5) * step[:, None] / count.clamp(min=1.0)[:, None]
    position = start[:, None, None] + places * step[:, None, None] + inner[:, None, :]
    counted = (number < count[:, None])[:, None, :].expand(-1, bins, -1)
    valid = (position >= -1.0) & (position <= size)
    position = position.clamp(min=0.0)
    low = position.to(torch.int64).clamp(0, size - 1)
    high = (low + 1).clamp(max=size - 1)
    weight = torch.where(low >= size - 1, torch.zeros_like(position), position - low)
    return tuple(t.flatten(1) for t in (low, high, weight, valid, counted))  # type: ignore[return-value]


def _most_samples(rois: torch.Tensor, options: Align) -> list[Any]:
    """Samples per bin along height and width: given, or as many as the largest of the regions needs."""
    if options.ratio > 0:
        return [options.ratio, options.ratio]
    lengths = (rois[:, 2:] - rois[:, :2]) * options.scale
    if not options.half_pixel:
        lengths = lengths.clamp(min=1.0)
    found = []
    for axis, bins in ((1, options.height), (0, options.width)):
        # One more than needed does no harm: rounding may differ here, and each region counts its own samples.
        most = (torch.ceil(lengths[:, axis] / bins).clamp(min=0.0).max().to(torch.int64) + 1).item()
        check: Any = torch._check  # noqa: SLF001 - the documented way to tell torch.export what holds of a number
        check(most >= 1)
        found.append(most)
    return found


def _align_regions(
    table: torch.Tensor, sizes: Any, rois: torch.Tensor, batch: torch.Tensor, options: Align
) -> torch.Tensor:
    """Pool `rois`; `table` holds the elements of the images as rows of channels."""
    height, width = sizes
    corners = rois * options.scale - (0.5 if options.half_pixel else 0.0)
    left, top, right, bottom = corners.unbind(1)
    rows, columns = _most_samples(rois, options)
    y0, y1, wy, valid_y, counted_y = _axis_samples(top, bottom, options.height, height, options, rows)
    x0, x1, wx, valid_x, counted_x = _axis_samples(left, right, options.width, width, options, columns)
    base = (batch.to(torch.int64) * height)[:, None]
    used = (counted_y[:, :, None] & counted_x[:, None, :]).unsqueeze(-1)
    inside = (valid_y[:, :, None] & valid_x[:, None, :]).unsqueeze(-1)
    parts = []
    for y, along_y in ((y0, 1 - wy), (y1, wy)):
        for x, along_x in ((x0, 1 - wx), (x1, wx)):
            index = ((base + y) * width)[:, :, None] + x[:, None, :]
            value = table.index_select(0, index.reshape(-1)).reshape(*index.shape, table.shape[1])
            parts.append(value * (along_y[:, :, None] * along_x[:, None, :]).unsqueeze(-1))
    shape = [rois.shape[0], options.height, rows, options.width, columns, table.shape[1]]
    if options.maximum:
        largest = torch.stack(parts).amax(0)
        largest = torch.where(inside, largest, torch.zeros_like(largest))
        lowest = torch.full_like(largest, -math.inf)
        pooled = torch.where(used, largest, lowest).reshape(shape).amax((2, 4))
        none = ~used.reshape([*shape[:5], 1]).any(4).any(2)
        return torch.where(none, torch.zeros_like(pooled), pooled).permute(0, 3, 1, 2)
    total = parts[0] + parts[1] + parts[2] + parts[3]
    total = torch.where(used & inside, total, torch.zeros_like(total)).reshape(shape).sum((2, 4))
    count = used.reshape([*shape[:5], 1]).to(total.dtype).sum((2, 4))
    return (total / count.clamp(min=1.0)).permute(0, 3, 1, 2)


def align_regions(x: torch.Tensor, rois: torch.Tensor, batch: torch.Tensor, *attributes: Any) -> torch.Tensor:
    """RoiAlign; `attributes` are the fields of :class:`Align`.

    ``max`` takes the largest of the four weighted neighbours of every sample, as ONNX's reference and onnxruntime do.

    Args:
        x: (N, C, H, W).
        rois: (R, 4): x1, y1, x2, y2.
        batch: (R,), the image of each region.
        attributes: see :class:`Align`.

    Returns:
        (R, C, height, width).
    """
    options = Align(*attributes)
    wide = x if x.dtype is torch.float64 else x.to(torch.float32)
    table = wide.permute(0, 2, 3, 1).reshape(-1, x.shape[1])
    rois = rois.to(wide.dtype)
    sizes = (x.shape[2], x.shape[3])
    if torch.compiler.is_compiling():
        return _align_regions(table, sizes, rois, batch, options).to(x.dtype)
    if rois.shape[0] == 0:
        return x.new_zeros(0, x.shape[1], options.height, options.width)
    samples = math.prod(_most_samples(rois, options)) * options.height * options.width
    rows = max(1, CHUNK // (samples * max(1, x.shape[1])))
    parts = zip(torch.split(rois, rows), torch.split(batch, rows), strict=True)
    return torch.cat([_align_regions(table, sizes, r, b, options) for r, b in parts]).to(x.dtype)


def roi_align(n: NodeView) -> Lowered:
    """RoiAlign 10, 16 and 22; version 10 has no shift by half a pixel."""
    mode = str(n.attr("mode", "avg"))
    coordinates = str(n.attr("coordinate_transformation_mode", "half_pixel")) if n.opset >= 16 else "output_half_pixel"
    if mode not in ("avg", "max") or coordinates not in ("half_pixel", "output_half_pixel"):
        raise n.refuse(f"mode {mode}, coordinate_transformation_mode {coordinates}")
    options = (
        int(n.attr("output_height", 1)),
        int(n.attr("output_width", 1)),
        int(n.attr("sampling_ratio", 0)),
        float(n.attr("spatial_scale", 1.0)),
        coordinates == "half_pixel",
        mode == "max",
    )
    return n.call(align_regions, n.tensor(0), n.tensor(1), n.tensor(2), *options)


def _bin_masks(start: torch.Tensor, end: torch.Tensor, bins: int, size: Any) -> torch.Tensor:
    """Masks of the elements of an axis that each bin of each region covers: bool (regions, bins, size)."""
    step = (end - start + 1).clamp(min=1.0) / bins
    number = torch.arange(bins, dtype=start.dtype, device=start.device)
    first = torch.floor(number * step[:, None]) + start[:, None]
    last = torch.ceil((number + 1) * step[:, None]) + start[:, None]
    element = torch.arange(size, dtype=start.dtype, device=start.device)
    return (element >= first[..., None]) & (element < last[..., None])


def _maxima(x: torch.Tensor, rois: torch.Tensor, pooled: list[int], scale: float) -> torch.Tensor:
    left, top, right, bottom = torch.floor(rois[:, 1:] * scale + 0.5).unbind(1)
    rows = _bin_masks(top, bottom, pooled[0], x.shape[2])
    columns = _bin_masks(left, right, pooled[1], x.shape[3])
    images = x.index_select(0, rois[:, 0].to(torch.int64))
    lowest = torch.full_like(images[:1], -math.inf)
    found: list[torch.Tensor] = []
    for i in range(pooled[0]):
        band = torch.where(rows[:, i][:, None, :, None], images, lowest).amax(2)
        found += [torch.where(columns[:, j][:, None, :], band, lowest[:, :, 0]).amax(2) for j in range(pooled[1])]
    result = torch.stack(found, 2).reshape(rois.shape[0], x.shape[1], *pooled)
    empty = ~(rows.any(2)[:, :, None] & columns.any(2)[:, None, :]).unsqueeze(1)
    return torch.where(empty, torch.zeros_like(result), result)


def region_maxima(x: torch.Tensor, rois: torch.Tensor, pooled: list[int], scale: float) -> torch.Tensor:
    """Maximum over the bins of each region (batch index, x1, y1, x2, y2), borders rounded as in onnxruntime.

    Returns:
        (R, C, *pooled); a bin without elements gives 0.
    """
    wide = rois if rois.dtype is torch.float64 else rois.to(torch.float32)
    if rois.shape[0] == 0:
        return x.new_zeros(0, x.shape[1], *pooled)
    if torch.compiler.is_compiling():
        return _maxima(x, wide, pooled, scale)
    rows = max(1, CHUNK // max(1, math.prod(x.shape[1:])))
    return torch.cat([_maxima(x, part, pooled, scale) for part in torch.split(wide, rows)])


def max_roi_pool(n: NodeView) -> Lowered:
    """MaxRoiPool 1 to 22."""
    return n.call(region_maxima, n.tensor(0), n.tensor(1), n.attr("pooled_shape"), n.attr("spatial_scale", 1.0))


def _corners(boxes: torch.Tensor, centered: bool) -> torch.Tensor:
    """Boxes (n, 4) as x1, y1, x2, y2 with x1 <= x2 and y1 <= y2."""
    a, b, c, d = boxes.unbind(1)
    if centered:
        half_width, half_height = c / 2, d / 2
        return torch.stack([a - half_width, b - half_height, a + half_width, b + half_height], 1)
    return torch.stack([torch.minimum(b, d), torch.minimum(a, c), torch.maximum(b, d), torch.maximum(a, c)], 1)


def _overlap(box: torch.Tensor, others: torch.Tensor, threshold: float) -> torch.Tensor:
    """Check whether intersection over union of `box` with each of `others` exceeds the threshold."""
    low, high = torch.maximum(box[:2], others[:, :2]), torch.minimum(box[2:], others[:, 2:])
    sides = high - low
    intersection = sides[:, 0] * sides[:, 1]
    area = (box[2] - box[0]) * (box[3] - box[1])
    areas = (others[:, 2] - others[:, 0]) * (others[:, 3] - others[:, 1])
    union = areas + area - intersection
    proper = (high > low).all(1) & (intersection > 0) & (area > 0) & (areas > 0) & (union > 0)
    return proper & (intersection / union > threshold)


def suppress(
    boxes: torch.Tensor,
    scores: torch.Tensor,
    limit: Any,
    iou_threshold: Any,
    score_threshold: Any,
    centered: bool,
) -> torch.Tensor:
    """Boxes in the order of their scores, without those that overlap a chosen one; of equal scores the first box first.

    Args:
        boxes: (N, S, 4).
        scores: (N, C, S).
        limit: most boxes a class and image.
        iou_threshold: boxes that overlap by more are dropped.
        score_threshold: lower and equal scores are left out; None keeps all.
        centered: boxes are x and y of the center, width, height; otherwise y1, x1, y2, x2 of any two opposite corners.

    Returns:
        (selected, 3) int64: image, class, box.
    """
    selected = []
    for image in range(boxes.shape[0] if limit > 0 else 0):
        corners = _corners(boxes[image].detach(), centered)
        for kind in range(scores.shape[1]):
            score = scores[image, kind].detach()
            order = torch.arange(score.shape[0], device=score.device)
            if score_threshold is not None:
                order = order[score > score_threshold]
            order = order[torch.argsort(score[order], descending=True, stable=True)]
            chosen: list[torch.Tensor] = []
            while order.shape[0] > 0 and len(chosen) < limit:
                chosen.append(order[:1])
                order = order[1:]
                order = order[~_overlap(corners[chosen[-1][0]], corners[order], iou_threshold)]
            if chosen:
                index = torch.cat(chosen)
                selected.append(torch.stack([torch.full_like(index, image), torch.full_like(index, kind), index], 1))
    if not selected:
        return torch.zeros([0, 3], dtype=torch.int64, device=boxes.device)
    return torch.cat(selected)


def non_max_suppression(n: NodeView) -> Lowered:
    """NonMaxSuppression 10 and 11; how many boxes are selected depends on data."""
    limit = n.scalar(2) if n.has(2) else 0
    iou = n.scalar(3) if n.has(3) else 0.0
    score = n.scalar(4) if n.has(4) else None
    return n.call(suppress, n.tensor(0), n.tensor(1), limit, iou, score, bool(n.attr("center_point_box", 0)))
