"""Boxes of heads that give, for each stride, class scores and distributions of the distances to the four sides.

That is generalized focal loss (Li et al., NeurIPS 2020) as in GFL and NanoDet: from the centre of each cell, the mean of
a softmax over bins of one stride each is the distance to the left, top, right and bottom.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnxqat.metrics._base import Array

STRIDES = (4, 8, 16, 32, 64, 128)
FEWEST_BINS = 2
USUAL = (4 * 8, 4 * 16, 4 * 17)
"""Columns of the distances: bins of NanoDet, of YOLO's heads, and of GFL."""


def boxes_and_scores(outputs: Sequence[Array], height: int, width: int) -> tuple[Array, Array] | None:
    """Corners (N, A, 4) in pixels and scores (N, A, C) as they are; None where `outputs` are no such heads.

    Args:
        outputs: (N, cells, columns), or (cells, columns) of a single sample; two of each stride, in any order.
        height: of the model's input.
        width: the same.
    """
    ranks = {array.ndim for array in outputs}
    if ranks not in ({2}, {3}):
        return None
    arrays = [np.asarray(a, np.float64)[None] if a.ndim == 2 else np.asarray(a, np.float64) for a in outputs]
    grids = {-(-height // stride) * -(-width // stride): stride for stride in reversed(STRIDES)}
    levels: dict[int, list[Array]] = {}
    for array in arrays:
        levels.setdefault(grids.get(array.shape[1], 0), []).append(array)
    columns = {tuple(sorted(array.shape[2] for array in pair)) for pair in levels.values()}
    if 0 in levels or len(columns) != 1 or any(len(pair) != 2 for pair in levels.values()):
        return None
    parted = [_parted(pair) for _, pair in sorted(levels.items())]
    if None in parted or len({distances.shape[2] for distances, _ in filter(None, parted)}) != 1:
        return None
    found = list(zip(sorted(levels), filter(None, parted), strict=True))
    boxes = [_corners(distances, stride, -(-width // stride)) for stride, (distances, _) in found]
    return np.concatenate(boxes, axis=1), np.concatenate([scores for _, (_, scores) in found], axis=1)


def _parted(pair: Sequence[Array]) -> tuple[Array, Array] | None:
    """Distances and scores; the names of outputs, which exporters mix up, do not tell."""
    first, second = sorted(pair, key=_likely_distances)
    return (first, second) if first.shape[2] % 4 == 0 and first.shape[2] >= 4 * FEWEST_BINS else None


def _likely_distances(array: Array) -> tuple[bool, bool, bool, int]:
    """Least of what are distances: a number for each side, not all in 0..1, as many as usual, fewer than classes."""
    columns = array.shape[2]
    share = bool(np.all((array >= 0) & (array <= 1)))
    return columns % 4 != 0, share, columns not in USUAL, columns


def _corners(distances: Array, stride: int, across: int) -> Array:
    samples, cells, columns = distances.shape
    bins = distances.reshape(samples, cells, 4, columns // 4)
    shares = np.exp(bins - bins.max(axis=3, keepdims=True))
    sides = (shares * np.arange(columns // 4)).sum(axis=3) / shares.sum(axis=3) * stride
    number = np.arange(cells)
    centre = (np.stack([number % across, number // across], axis=1) + 0.5) * stride - 0.5
    corners: Array = np.concatenate([centre - sides[..., :2], centre + sides[..., 2:]], axis=2)
    return corners
