"""Base class of metrics; each is a file of this folder with a class ``Metric``, found by its name."""

from __future__ import annotations

import abc
import dataclasses
import os
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy.typing as npt

from onnxqat.data.data import Data
from onnxqat.errors import DataError, UsageError
from onnxqat.metrics._limits import AGREEMENT, LABELLED, DropLimits
from onnxqat.metrics._paired import Answers

Array = npt.NDArray[Any]
FUNCTION_HINT = (
    "score with a function of your own, --score module:function: it calls predict(feeds) and returns a number"
)


@dataclasses.dataclass(frozen=True)
class Batch:
    """Inputs and outputs of one model for one batch.

    Attributes:
        feeds: inputs by name.
        outputs: outputs by name, in the order of the graph.
        labels: the data's labels; None where they have none.
        reference: outputs of the float model; None where the metric does not compare with them.
    """

    feeds: Mapping[str, Array]
    outputs: Mapping[str, Array]
    labels: Array | None
    reference: Mapping[str, Array] | None


class BaseMetric(abc.ABC):
    """The sums of one pass over the data; an object scores one model once.

    Attributes:
        needs: what it compares with: the data's labels, the float model's outputs, or labels where there are some and
            the float model's outputs otherwise.
        default_drop: what a search may lose against float where the user does not say, in units of :meth:`drop`.
        limits: what a verdict lets pass, against labels or the float model.
        agreement: the same where it compares with the float model for want of labels.
    """

    needs: ClassVar[Literal["labels", "float", "either"]]
    default_drop: ClassVar[float] = 0.01
    limits: ClassVar[DropLimits] = LABELLED
    agreement: ClassVar[DropLimits] = AGREEMENT

    @classmethod
    def annotated(cls, data: Data, labels: str | os.PathLike[str] | None) -> Data:
        """`data` with the labels that the metric reads.

        Args:
            data: as the command opened them.
            labels: file or folder of labels that the user names.

        Raises:
            UsageError: ``option-invalid``: the metric reads the labels that come with the data.
            DataError: ``data-labels``.
        """
        if labels is not None:
            name = cls.__module__.rpartition(".")[2].replace("_", "-")
            hint = "labels lie in the .npz file under 'labels', in labels.csv of a folder of images, or are the names of sub-folders"
            raise UsageError("option-invalid", f"{name} does not read labels from {os.fspath(labels)}", hint=hint)
        return data

    @abc.abstractmethod
    def update(self, batch: Batch) -> None:
        """Add one batch.

        Raises:
            DataError: ``data-labels``: the labels do not fit the metric or the outputs.
            UsageError: ``score-output``: the outputs are none that the metric reads.
        """

    @abc.abstractmethod
    def result(self) -> float:
        """The metric over all batches, higher is better; NaN where it is not defined."""

    def answers(self) -> Answers | None:
        """Return the samples that were answered right; None for a metric that is no share of right answers."""
        return None

    @staticmethod
    def drop(before: float, after: float) -> float:
        """Return the loss from `before`, the float model's score, to `after`; negative for a gain."""
        return before - after


def wrong_outputs(metric: str, wanted: str, outputs: Mapping[str, Array]) -> UsageError:
    """The error for outputs that a metric does not read.

    Args:
        metric: its name.
        wanted: what it reads.
        outputs: what the model gives.
    """
    found = ", ".join(f"{name!r} {a.dtype}{list(a.shape)}" for name, a in outputs.items())
    return UsageError("score-output", f"{metric} needs {wanted}; the model gives {found}", hint=FUNCTION_HINT)


def wrong_labels(metric: str, wanted: str, labels: Array) -> DataError:
    """The error for labels that a metric does not read.

    Args:
        metric: its name.
        wanted: what it reads.
        labels: what the data have.
    """
    return DataError("data-labels", f"{metric} needs labels {wanted}; these have shape {list(labels.shape)}")


def class_scores(metric: str, outputs: Mapping[str, Array]) -> Array:
    """The one output that holds a score for each class, as (N, C), C > 1; axes of size 1 behind them are dropped.

    Raises:
        UsageError: ``score-output``: there is none, or more than one.
    """
    found = [
        array.reshape(array.shape[:2])
        for array in outputs.values()
        if array.dtype.kind == "f" and array.ndim >= 2 and array.shape[1] > 1 and set(array.shape[2:]) <= {1}
    ]
    if len(found) != 1:
        raise wrong_outputs(metric, "one output of shape (N, C), a score for each of C classes", outputs)
    return found[0]


def floats(metric: str, outputs: Mapping[str, Array], reference: Mapping[str, Array]) -> dict[str, tuple[Array, Array]]:
    """Each output with numbers that is not an index, and the float model's; the others where there are no such.

    Raises:
        UsageError: ``score-output``: the two differ in shape, or there is no output with numbers.
    """
    numbers = {name: array for name, array in outputs.items() if array.dtype.kind in "fiub"}
    chosen = {name: array for name, array in numbers.items() if array.dtype.kind == "f"} or numbers
    if not chosen:
        raise wrong_outputs(metric, "an output of numbers", outputs)
    for name, array in chosen.items():
        if array.shape != reference[name].shape:
            raise UsageError(
                "score-output",
                f"output {name!r} has shape {list(array.shape)}, and {list(reference[name].shape)} in the float model: "
                f"{metric} compares element by element",
                hint=f"rows that NonMaxSuppression chose are scored by coco-map; else {FUNCTION_HINT}",
            )
    return {name: (array, reference[name]) for name, array in chosen.items()}
