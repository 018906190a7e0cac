"""Mean intersection over union of segmentation maps."""

from __future__ import annotations

import math

import numpy as np

from onnxqat.metrics._base import Array, BaseMetric, Batch, wrong_labels, wrong_outputs

IGNORED = 255
"""Label of pixels that do not count, as in PASCAL VOC and Cityscapes; so do negative ones."""


class Metric(BaseMetric):
    """0 to 1: the mean over the classes that occur in labels or predictions of the whole data.

    The output is (N, C, H, W) or (N, H, W, C) with a score for each class, or the class numbers as (N, H, W) or
    (N, 1, H, W); labels are class numbers of shape (N, H, W).
    """

    needs = "labels"

    def __init__(self) -> None:
        self._both = self._either = np.zeros(0, np.int64)

    def update(self, batch: Batch) -> None:
        """Count one batch."""
        assert batch.labels is not None
        labels = batch.labels
        if labels.ndim == 4 and 1 in (labels.shape[1], labels.shape[3]):
            labels = labels.reshape(labels.shape[0], *labels.shape[2:] if labels.shape[1] == 1 else labels.shape[1:3])
        if labels.ndim != 3 or labels.dtype.kind not in "iub":
            raise wrong_labels("miou", "of shape (N, H, W), class numbers", batch.labels)
        classes = _class_map(batch, labels)
        counts = (labels >= 0) & (labels != IGNORED)
        wanted, found = labels[counts].astype(np.int64), classes[counts].astype(np.int64)
        size = int(max(wanted.max(initial=-1), found.max(initial=-1), len(self._both) - 1)) + 1
        same = np.bincount(wanted[wanted == found], minlength=size)
        union = np.bincount(wanted, minlength=size) + np.bincount(found, minlength=size) - same
        self._both = _padded(self._both, size) + same
        self._either = _padded(self._either, size) + union

    def result(self) -> float:
        """The mean."""
        seen = self._either > 0
        return float((self._both[seen] / self._either[seen]).mean()) if seen.any() else math.nan


def _class_map(batch: Batch, labels: Array) -> Array:
    """Class numbers in the shape of `labels`, of the one output that has them."""
    count, *sides = labels.shape
    found = []
    for array in batch.outputs.values():
        if array.shape == labels.shape or array.shape in ((count, 1, *sides), (count, *sides, 1)):
            if array.dtype.kind in "iub":
                found.append(array.reshape(labels.shape))
        elif array.ndim == 4 and array.dtype.kind == "f" and [*array.shape[2:]] == sides:
            found.append(array.argmax(axis=1))
        elif array.ndim == 4 and array.dtype.kind == "f" and [*array.shape[1:3]] == sides:
            found.append(array.argmax(axis=3))
    if len(found) != 1:
        wanted = f"one output (N, C, {sides[0]}, {sides[1]}) of class scores or (N, {sides[0]}, {sides[1]}) of classes"
        raise wrong_outputs("miou", f"{wanted}, as large as the labels", batch.outputs)
    if (found[0] < 0).any():
        raise wrong_outputs("miou", "class numbers that are not negative", batch.outputs)
    return found[0]


def _padded(counts: Array, size: int) -> Array:
    return np.pad(counts, (0, size - len(counts)))
