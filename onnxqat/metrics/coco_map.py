"""Mean average precision of a detector as COCO defines it, over overlaps of 0.50 to 0.95."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from onnxqat.data.data import Data
from onnxqat.errors import UsageError
from onnxqat.metrics._base import Array, BaseMetric, Batch, wrong_labels
from onnxqat.metrics._detections import Detections, detections
from onnxqat.metrics._ground_truth import BoxReader


class Metric(BaseMetric):
    """0 to 1, by pycocotools: AP of all areas with at most 100 boxes a sample.

    Overlaps do not change when an image is scaled, so boxes are compared in pixels of the model's input, where the
    preprocessing puts those of the labels.

    Labels lie beside the images of a folder, see :class:`onnxqat.metrics._ground_truth.BoxReader`, or come with the data
    as (N, M, 5): class, x1, y1, x2, y2 in pixels of the model's input, rows of class -1 to fill up. The forms of outputs
    are those of :func:`onnxqat.metrics._detections.detections`.
    """

    needs = "labels"

    def __init__(self) -> None:
        self._found: list[Detections] = []
        self._wanted: list[Array] = []

    @classmethod
    def annotated(cls, data: Data, labels: str | os.PathLike[str] | None) -> Data:
        """`data` with the boxes beside its images.

        Raises:
            UsageError: ``dependency-missing``; ``option-invalid``: labels for data that are no images.
            DataError: ``data-labels``, ``data-format``, ``data-not-found``.
        """
        if importlib.util.find_spec("pycocotools") is None:
            hint = "pip install 'onnxqat[metrics]'"
            raise UsageError("dependency-missing", "coco-map needs pycocotools, which is not installed", hint=hint)
        found = data.annotated(BoxReader(labels))
        return super().annotated(data, labels) if found is None else found

    def update(self, batch: Batch) -> None:
        """Add one batch."""
        labels = batch.labels
        assert labels is not None
        if labels.ndim != 3 or labels.shape[2] not in (5, 6):
            raise wrong_labels("coco-map", "of shape (N, M, 5): class, x1, y1, x2, y2", labels)
        found = detections(batch.outputs, *_sides(batch.feeds))
        if len(found) != len(labels):
            raise wrong_labels("coco-map", f"for the {len(found)} samples of the outputs", labels)
        self._found += found
        self._wanted += [rows[rows[:, 0] >= 0].astype(np.float64) for rows in labels]

    def result(self) -> float:
        """The mean average precision; NaN without a box in the labels."""
        if not any(len(rows) for rows in self._wanted):
            return math.nan
        if not any(len(found.scores) for found in self._found):
            return 0.0
        return _average_precision(self._wanted, self._found)


def _sides(feeds: Mapping[str, Array]) -> tuple[int, int]:
    """Height and width of the image that is fed."""
    images = [a for a in feeds.values() if a.ndim == 4]
    if not images:
        hint = "score it with a function of your own"
        raise UsageError("score-output", "coco-map needs a model of images, with an input of rank 4", hint=hint)
    _, one, two, three = images[0].shape
    return (two, three) if one in (1, 3, 4) or three not in (1, 3, 4) else (one, two)


def _average_precision(wanted: list[Array], found: list[Detections]) -> float:
    """Return COCO's mAP 50-95 over all classes with boxes in the labels, by pycocotools."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    classes = sorted({int(kind) for rows in wanted for kind in rows[:, 0]})
    truth, results = COCO(), COCO()
    kinds = [{"id": kind} for kind in classes]
    images = [{"id": number} for number in range(1, len(wanted) + 1)]
    rows: list[dict[str, Any]] = []
    for number, boxes in enumerate(wanted, start=1):
        for box in boxes:
            crowd = int(box[5]) if len(box) > 5 else 0
            rows.append(_entry(len(rows), number, int(box[0]), box[1:5]) | {"iscrowd": crowd})
    made: list[dict[str, Any]] = []
    for number, each in enumerate(found, start=1):
        for box, score, kind in zip(each.boxes, each.scores, each.classes, strict=True):
            made.append(_entry(len(made), number, int(kind), box) | {"iscrowd": 0, "score": float(score)})
    with contextlib.redirect_stdout(io.StringIO()):  # it tells of its progress
        for side, entries in ((truth, rows), (results, made)):
            side.dataset = {"images": images, "categories": kinds, "annotations": entries}
            side.createIndex()
        judged = COCOeval(truth, results, "bbox")
        judged.params.areaRng, judged.params.areaRngLbl, judged.params.maxDets = [[0.0, 1e10]], ["all"], [100]
        judged.evaluate()
        judged.accumulate()
    precision = judged.eval["precision"]  # -1 where a class has no box in the labels
    return float(precision[precision > -1].mean())


def _entry(number: int, image: int, kind: int, box: Array) -> dict[str, Any]:
    """A box as COCO has it; ids count from 1, since pycocotools takes 0 for no match."""
    left, top, right, bottom = map(float, box)
    width, height = right - left, bottom - top
    return {
        "id": number + 1,
        "image_id": image,
        "category_id": kind,
        "bbox": [left, top, width, height],
        "area": width * height,
    }
