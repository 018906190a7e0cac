"""Boxes, scores and classes out of what detectors give."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from onnxqat.metrics._base import Array, wrong_outputs
from onnxqat.metrics._distances import boxes_and_scores

LOWEST_SCORE, OVERLAP, CANDIDATES, KEPT = 0.001, 0.65, 3000, 300
"""Settings of non-maximum suppression with which detectors are compared on COCO, as YOLOX and YOLOv5 have them."""
STRIDES = ((8, 16, 32), (8, 16, 32, 64), (4, 8, 16, 32))
MOST_FINISHED = 1000
"""Up to this number of rows, rows of 6 columns are boxes after suppression; above it they are anchors of one class."""
NORMALISED = 2.0
"""Boxes whose coordinates are all below this are shares of the image; in pixels that would be a corner of two."""


@dataclasses.dataclass(frozen=True)
class Detections:
    """The boxes of one sample.

    Attributes:
        boxes: (K, 4), x1, y1, x2, y2 in pixels of the model's input.
        scores: (K,).
        classes: (K,), numbers from 0.
    """

    boxes: Array
    scores: Array
    classes: Array


def detections(outputs: Mapping[str, Array], height: int, width: int) -> list[Detections]:
    """The boxes of each sample of a batch.

    ==================================================  ===========================================================
    outputs                                             read as
    ==================================================  ===========================================================
    (N, A, 5 + C)                                       cx, cy, w, h, objectness, C classes (YOLOX, YOLOv5)
    (N, 4 + C, A), more columns than rows               cx, cy, w, h, C classes (YOLOv8 and its successors)
    (N, M, 6) with M up to 1000                         x1, y1, x2, y2, score, class
    (N, A, 4) and (N, A, C)                             boxes and the scores of C classes
    (N, M, 4), (N, M), (N, M), perhaps a number (N,)    boxes, scores and classes; without N for a single sample
    (N, A, C) and (N, A, 4 B) for each stride           class scores, and bins of the distances to the sides (NanoDet)
    ==================================================  ===========================================================

    The first, second, fourth and last go through non-maximum suppression. YOLOX's offsets to the grid are decoded, where a file
    was exported without that. Coordinates are pixels of the input, or shares of it.

    Args:
        outputs: by name.
        height: of the model's input.
        width: the same.

    Raises:
        UsageError: ``score-output``: they are none of these.
    """
    numbers = {name: array for name, array in outputs.items() if array.dtype.kind in "fiu"}
    found: list[Detections] | None = None
    if len(numbers) == 1:
        array = next(iter(numbers.values())).astype(np.float64)
        found = _of_one(array, height, width) if array.ndim == 3 else None
    elif len(numbers) == 2:
        found = _of_scores(list(numbers.values()), height, width)
    else:
        found = _of_finished(numbers, height, width) or _of_distances(list(numbers.values()), height, width)
    if found is None:
        wanted = "outputs of boxes, scores and classes in a form that docs/metrics.md lists"
        raise wrong_outputs("coco-map", wanted, outputs)
    return found


def _of_one(array: Array, height: int, width: int) -> list[Detections] | None:
    _, rows, columns = array.shape
    if columns == 6 and rows <= MOST_FINISHED:
        boxes = _in_pixels(array[..., :4], height, width)
        return [_sorted(b, a[:, 4], a[:, 5]) for b, a in zip(boxes, array, strict=True)]
    if rows < columns and rows > 4 and _cells(columns, height, width, anchors=(1,)):
        array = array.transpose(0, 2, 1)
        return _suppressed(_corners(_in_pixels(array[..., :4], height, width)), array[..., 4:])
    cells = _cells(rows, height, width, anchors=(1, 3))
    if columns <= 5 or not cells:
        return None
    boxes, scores = array[..., :4], _probabilities(array[..., 5:]) * _probabilities(array[..., 4:5])
    offsets = len(cells) * 1 == rows and np.nanmax(np.abs(boxes[..., :2]), initial=0.0) < max(height, width) / 4
    boxes = _decoded(boxes, cells) if offsets else _in_pixels(boxes, height, width)
    return _suppressed(_corners(boxes), scores)


def _cells(rows: int, height: int, width: int, anchors: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """Return column, row and stride of each cell of the grids that make up `rows` rows; empty where none do."""
    for strides in STRIDES:
        found = [
            (x, y, stride)
            for stride in strides
            for y in range(-(-height // stride))
            for x in range(-(-width // stride))
        ]
        if any(len(found) * each == rows for each in anchors):
            return found
    return []


def _decoded(boxes: Array, cells: list[tuple[int, int, int]]) -> Array:
    """Centres and sizes out of offsets to the grid and logarithms, in units of the stride."""
    grid = np.array(cells, np.float64)
    with np.errstate(over="ignore"):
        sizes = np.exp(boxes[..., 2:])
    return np.concatenate([boxes[..., :2] + grid[:, :2], sizes], axis=-1) * grid[:, 2:]


def _of_scores(arrays: list[Array], height: int, width: int) -> list[Detections] | None:
    boxes = [a for a in arrays if a.ndim == 3 and a.shape[2] == 4]
    scores = [a for a in arrays if a.ndim == 3 and not any(a is b for b in boxes[:1])]
    if not boxes or len(scores) != 1 or boxes[0].shape[:2] != scores[0].shape[:2]:
        return None
    found = _in_pixels(boxes[0].astype(np.float64), height, width)
    # Corners in every row, which sizes are not: the centre of a box on the right is larger than its width.
    corners = bool((found[..., 2:] >= found[..., :2]).all())
    return _suppressed(found if corners else _corners(found), _probabilities(scores[0].astype(np.float64)))


def _of_distances(arrays: list[Array], height: int, width: int) -> list[Detections] | None:
    read = boxes_and_scores(arrays, height, width)
    return None if read is None else _suppressed(read[0], _probabilities(read[1]))


def _of_finished(arrays: Mapping[str, Array], height: int, width: int) -> list[Detections] | None:
    rank = max((a.ndim for a in arrays.values()), default=0)  # scores of four boxes in batches end in 4 as well
    boxes = [a for a in arrays.values() if a.ndim == rank and rank in (2, 3) and a.shape[-1] == 4]
    if len(boxes) != 1:
        return None
    shape = boxes[0].shape[:-1]
    rest = {name: a for name, a in arrays.items() if a is not boxes[0]}
    flat = {name: a.reshape(shape) for name, a in rest.items() if a.shape in (shape, (*shape, 1))}
    named = {n: a for n, a in flat.items() if any(w in n.lower() for w in ("class", "label", "cls"))}
    classes = list((named or {n: a for n, a in flat.items() if a.dtype.kind in "iu"}).values())
    scores = [a for a in flat.values() if a.dtype.kind == "f" and not any(a is c for c in classes)]
    counts = [a.reshape(-1) for n, a in rest.items() if n not in flat and a.dtype.kind in "iuf" and a.size == shape[0]]
    if len(classes) != 1 or len(scores) != 1 or len(counts) > 1:
        return None
    single = len(shape) == 1
    found = _in_pixels(boxes[0].astype(np.float64), height, width)
    parts = [a[None] if single else a for a in (found, scores[0], classes[0])]
    limits = counts[0].astype(int) if counts else np.full(len(parts[0]), parts[0].shape[1])
    return [_sorted(b[:k], s[:k], c[:k]) for b, s, c, k in zip(*parts, limits, strict=True)]


def _in_pixels(boxes: Array, height: int, width: int) -> Array:
    """Boxes of four columns in pixels; the last two may be corners or sizes."""
    if not boxes.size or not np.nanmax(np.abs(boxes), initial=0.0) < NORMALISED:
        return boxes
    return boxes * np.array([width, height, width, height], np.float64)


def _corners(boxes: Array) -> Array:
    return np.concatenate([boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2], axis=-1)


def _probabilities(scores: Array) -> Array:
    """Scores as they are where all lie in 0..1, else the sigmoid of them."""
    if not scores.size or (np.nanmin(scores) >= 0 and np.nanmax(scores) <= 1):
        return scores
    with np.errstate(over="ignore"):
        return 1.0 / (1.0 + np.exp(-scores))


def _sorted(boxes: Array, scores: Array, classes: Array) -> Detections:
    usable = np.flatnonzero((classes >= 0) & (scores > 0) & np.isfinite(boxes).all(axis=1))
    order = usable[np.argsort(-scores[usable], kind="stable")][:KEPT]
    return Detections(boxes[order], scores[order].astype(np.float64), classes[order].astype(np.int64))


def _suppressed(boxes: Array, scores: Array) -> list[Detections]:
    """Non-maximum suppression of each class, a sample at a time; boxes (N, A, 4), scores (N, A, C)."""
    return [_suppressed_sample(b, s) for b, s in zip(boxes, scores, strict=True)]


def _suppressed_sample(boxes: Array, scores: Array) -> Detections:
    """Suppress overlapping boxes of one image greedily, class by class, from the highest score down."""
    rows, classes = np.nonzero(scores > LOWEST_SCORE)
    usable = np.isfinite(boxes[rows]).all(axis=1)
    rows, classes = rows[usable], classes[usable]
    found = scores[rows, classes]
    order = np.argsort(-found, kind="stable")[:CANDIDATES]
    rows, classes, found = rows[order], classes[order], found[order]
    chosen = boxes[rows]
    # Boxes of different classes are moved apart, so that one pass serves all classes.
    span = float(np.ptp(chosen)) + 1.0 if chosen.size else 1.0
    moved = chosen + (classes * span)[:, None]
    area = np.prod(np.maximum(moved[:, 2:] - moved[:, :2], 0.0), axis=1)
    alive = np.arange(len(moved))
    kept: list[int] = []
    while len(alive) and len(kept) < KEPT:
        first, alive = int(alive[0]), alive[1:]
        kept.append(first)
        low = np.maximum(moved[first, :2], moved[alive, :2])
        high = np.minimum(moved[first, 2:], moved[alive, 2:])
        both = np.prod(np.maximum(high - low, 0.0), axis=1)
        union = area[first] + area[alive] - both
        alive = alive[both <= OVERLAP * np.maximum(union, np.finfo(np.float64).tiny)]
    return Detections(chosen[kept], found[kept], classes[kept])
