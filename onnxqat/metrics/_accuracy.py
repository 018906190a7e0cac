"""Accuracy of a classifier, batch by batch."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxqat.errors import DataError
from onnxqat.metrics import _numbering
from onnxqat.metrics._paired import Answers, Paired, commonest

TOP = 5

COUNTED = "a label is the number of a class, counted from 0"
"""Hint for labels that are something else."""


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """Share of right answers of one run.

    Attributes:
        run: which model, computed by what.
        top1: share of samples whose largest logit is the label's, 0..1.
        top5: share whose label is among the five largest; None with five classes or fewer.
        samples: number of samples.
        against: what counts as right: the data's labels, or the float model's own top-1.
        paired: top-1 beside that of the float model, sample by sample; None for the float model itself.
    """

    run: str
    top1: float
    top5: float | None
    samples: int
    against: str
    paired: Paired | None = None


class AccuracyMeter:
    """Counts right answers; holds no batch, but for each sample whether it was right."""

    def __init__(self) -> None:
        self.samples = 0
        self._right: dict[int, list[npt.NDArray[np.bool_]]] = {1: [], TOP: []}
        self._labels: list[npt.NDArray[np.int64]] = []
        self._answers: list[npt.NDArray[np.int64]] = []
        self._classes = 0

    def update(self, logits: npt.NDArray[Any], labels: npt.NDArray[Any]) -> None:
        """Count one batch.

        Args:
            logits: shape (N, C).
            labels: class numbers of shape (N,) or (N, 1), or scores of shape (N, C) whose largest is the label.

        Raises:
            DataError: ``data-labels``: a label is no class of the model, or the shapes do not fit.
        """
        classes = class_numbers(labels, logits.shape[0], logits.shape[1])
        own = np.take_along_axis(logits, classes[:, None], axis=1)
        # Ties go to the lower index, as in argmax.
        before = np.arange(logits.shape[1])[None, :] < classes[:, None]
        rank = ((logits > own) | ((logits == own) & before)).sum(axis=1)
        missing = np.isnan(own[:, 0])
        for most, right in self._right.items():
            right.append((rank < most) & ~missing)
        self._labels.append(classes)
        self._answers.append(logits.argmax(axis=1))
        self.samples += len(classes)
        self._classes = logits.shape[1]

    def answers(self, most: int = 1) -> Answers:
        """Samples whose label is among the `most` largest logits, 1 or :data:`TOP`."""
        if not self.samples:
            return Answers(np.zeros(0, bool), 1.0)
        return Answers(np.concatenate(self._right[most]), commonest(np.concatenate(self._labels)))

    def doubt_of_labels(self) -> str | None:
        """See :func:`onnxqat.metrics._numbering.doubt`."""
        if not self.samples:
            return None
        return _numbering.doubt(np.concatenate(self._answers), np.concatenate(self._labels))

    def result(self, run: str, against: str, paired: Paired | None = None) -> Accuracy:
        """Return the accuracy over all batches so far; `run`, `against` and `paired` are handed on to it."""
        count = max(self.samples, 1)
        first, fifth = (int(self.answers(most).right.sum()) / count for most in (1, TOP))
        return Accuracy(run, first, fifth if self._classes > TOP else None, self.samples, against, paired)


def class_numbers(labels: npt.NDArray[Any], samples: int, classes: int) -> npt.NDArray[np.int64]:
    """`labels` as class numbers of shape (samples,).

    Raises:
        DataError: ``data-labels``.
    """
    found = np.asarray(labels)
    if found.shape == (samples, classes) and classes > 1:
        found = found.argmax(axis=1)
    if found.size != samples:
        raise DataError("data-labels", f"labels of shape {list(found.shape)} for {samples} samples")
    found = found.reshape(samples)
    if found.dtype.kind not in "iub" and not (found.dtype.kind == "f" and (found == np.rint(found)).all()):
        raise DataError("data-labels", f"labels of type {found.dtype} are not class numbers", hint=COUNTED)
    numbers = found.astype(np.int64)
    if numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) < classes:
        wrong = numbers[(numbers < 0) | (numbers >= classes)][0]
        raise DataError("data-labels", f"label {wrong} is no class of a model with {classes} outputs", hint=COUNTED)
    return numbers
