"""F1: the harmonic mean of precision and recall."""

from __future__ import annotations

import math

import numpy as np

from onnxqat.metrics._accuracy import class_numbers
from onnxqat.metrics._base import Array, BaseMetric, Batch, wrong_labels, wrong_outputs


class Metric(BaseMetric):
    """0 to 1, from counts over the whole data.

    ========================  ==============================  ========================================================
    output                    labels                          F1
    ========================  ==============================  ========================================================
    (N, C), C > 1             class numbers (N,)              mean over the classes that occur (macro)
    (N, T, C), C > 1          class numbers (N, T)            the same over tokens; negative labels do not count
    (N, C), C > 1             0 and 1, (N, C)                 mean over the C columns: several labels a sample
    (N,) or (N, 1)            0 and 1, (N,) or (N, 1)         of the class 1
    ========================  ==============================  ========================================================

    A score of the last two is positive above 0.5 where all lie in 0..1 (probabilities), else above 0 (logits).
    """

    needs = "labels"

    def __init__(self) -> None:
        self._counts: dict[str, Array] = {}
        self._probabilities = True

    def update(self, batch: Batch) -> None:
        """Count one batch."""
        assert batch.labels is not None
        labels = batch.labels
        scores = [a for a in batch.outputs.values() if a.dtype.kind == "f" and _has_labels_for(a, labels)]
        if len(scores) != 1:
            raise wrong_outputs(
                "f1", f"one output of class scores that fits labels of shape {list(labels.shape)}", batch.outputs
            )
        output = scores[0]
        if output.size == labels.size:
            self._columns(output.reshape(len(output), -1), labels.reshape(len(labels), -1))
            return
        flat = labels.reshape(-1)
        kept = flat >= 0
        rows = output.reshape(-1, output.shape[-1])[kept]
        wanted = class_numbers(flat[kept], len(rows), output.shape[-1])
        # A row with NaN predicts nothing: it counts against recall, and against the precision of no class.
        usable = ~np.isnan(rows).any(axis=1)
        found = rows[usable].argmax(axis=1)
        classes = output.shape[-1]
        right = np.bincount(found[found == wanted[usable]], minlength=classes)
        self._add("classes", right, np.bincount(found, minlength=classes), np.bincount(wanted, minlength=classes))

    def _columns(self, scores: Array, labels: Array) -> None:
        if not np.isin(labels, (0, 1)).all():
            raise wrong_labels("f1", "of 0 and 1 for an output of their own shape", labels)
        self._probabilities &= bool(((scores >= 0) & (scores <= 1)).all())
        wanted = labels.astype(bool)
        for name, threshold in (("logits", 0.0), ("probabilities", 0.5)):
            found = scores > threshold
            self._add(name, (found & wanted).sum(axis=0), found.sum(axis=0), wanted.sum(axis=0))

    def _add(self, name: str, right: Array, found: Array, wanted: Array) -> None:
        counts = np.stack([right, found, wanted])
        self._counts[name] = self._counts.get(name, 0) + counts

    def result(self) -> float:
        """The mean of 2 right / (found + wanted)."""
        name = "probabilities" if self._probabilities else "logits"
        if "classes" in self._counts:
            name = "classes"
        if name not in self._counts:
            return math.nan
        right, found, wanted = self._counts[name]
        seen = (found + wanted > 0) if name == "classes" else np.ones(len(right), bool)
        return float((2 * right[seen] / np.maximum(found + wanted, 1)[seen]).mean()) if seen.any() else math.nan


def _has_labels_for(output: Array, labels: Array) -> bool:
    """Check whether `labels` has one entry for each value of `output`, or for each row of class scores."""
    if output.size == labels.size and output.shape[:1] == labels.shape[:1]:
        return True
    return output.ndim >= 2 and output.shape[-1] > 1 and output.size == labels.size * output.shape[-1]
