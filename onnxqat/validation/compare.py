"""Difference of a model's outputs in two runs, summed up batch by batch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxqat.metrics._closeness import Difference

FLOAT_ROUNDING = 2.0**-16
"""Largest difference, relative to the largest magnitude of a tensor, that counts as float32 rounding: sums of some
thousand products in another order reach about a quarter of it."""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One output in two runs.

    Attributes:
        output: name of the graph output.
        run: the run that is judged.
        against: the run that it is compared with.
        samples: number of samples.
        differing_top1: samples whose largest logit differs; None for an output that is no classifier's.
        max_abs: largest absolute difference.
        sqnr_db: 10 log10(sum(against²) / sum((against - run)²)); infinite when they are equal, as
            outputs without values are.
        non_finite: number of NaN and infinite values of `run`.
        differing: share of integers, booleans or strings that differ; None for floats.
        unequal: number of values of any type that differ; two NaN are equal.
        elements: number of values.
    """

    output: str
    run: str
    against: str
    samples: int
    differing_top1: int | None
    max_abs: float
    sqnr_db: float
    non_finite: int
    differing: float | None = None
    unequal: int = 0
    elements: int = 0


class OutputMeter:
    """Compares one graph output of two runs.

    Args:
        classifier: whether the output is one row of logits per sample.
    """

    def __init__(self, classifier: bool) -> None:
        self._differing = 0 if classifier else None
        self._samples = 0
        self._others: int | None = None
        self._unequal = self._elements = 0
        self._difference = Difference()

    def update(self, value: npt.NDArray[Any], reference: npt.NDArray[Any]) -> None:
        """Add one batch; arrays of equal shape, samples along the first axis."""
        self._difference.update(value, reference)
        self._samples += len(value) if value.ndim else 1
        same = value == reference
        if value.dtype.kind == "f":
            same |= np.isnan(value) & np.isnan(reference)
        self._unequal, self._elements = self._unequal + int(np.count_nonzero(~same)), self._elements + value.size
        if reference.dtype.kind not in "fc":
            self._others = (self._others or 0) + int(np.count_nonzero(value != reference))
        if self._differing is not None:
            self._differing += int((value.argmax(axis=1) != reference.argmax(axis=1)).sum())

    def result(self, output: str, run: str, against: str) -> Comparison:
        """Return the comparison over all batches so far; `output`, `run` and `against` name it."""
        d = self._difference
        noise = d.sqnr_db if d.elements else math.inf
        others = None if self._others is None else self._others / max(d.elements, 1)
        counts = (self._samples, self._differing, d.max_abs, noise, d.non_finite, others)
        return Comparison(output, run, against, *counts, self._unequal, self._elements)


class Variation:
    """Tells whether the outputs of a run depend on the sample.

    Attributes:
        seen: whether some output has differed from that of the first sample; NaN is equal to NaN.
    """

    def __init__(self) -> None:
        self.seen = False
        self._first: dict[str, npt.NDArray[Any]] = {}

    def update(self, outputs: Mapping[str, npt.NDArray[Any]]) -> None:
        """Add one batch; samples along the first axes."""
        for name, value in outputs.items():
            rows = value if value.ndim else value[None]
            if self.seen or not len(rows):
                continue
            first = self._first.setdefault(name, rows[:1].copy())
            same = first.shape[1:] == rows.shape[1:]
            floats = rows.dtype.kind == "f"
            self.seen = not same or not np.array_equal(rows, np.broadcast_to(first, rows.shape), equal_nan=floats)


def parts(value: npt.NDArray[Any], reference: npt.NDArray[Any]) -> float:
    """Largest difference relative to the largest magnitude of `reference`; infinite where only one side is finite."""
    if value.shape != reference.shape:
        return math.inf
    if not value.size:
        return 0.0
    if value.dtype.kind in "OU":
        return float(np.any(value != reference))
    x, ref = np.asarray(value, np.float64), np.asarray(reference, np.float64)
    finite = np.isfinite(ref)
    if not (finite == np.isfinite(x)).all():
        return math.inf
    with np.errstate(invalid="ignore"):
        difference = np.where(finite, np.abs(x - ref), 0.0)
    worst, largest = float(difference.max()), float(np.abs(np.where(finite, ref, 0.0)).max())
    return 0.0 if worst == 0.0 else worst / max(largest, float(np.finfo(np.float32).tiny))


def plain(value: Any) -> Any:
    """`value` as JSON has it: dataclasses as objects, tuples as lists, infinities and NaN as null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (np.integer, np.floating)):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
