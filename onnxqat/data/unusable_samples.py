"""Samples that ranges should not be taken from: the same one again and again, damaged ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxqat.data.inputs import Feeds

OUTLIER = 10
"""Powers of two beyond most others from which a sample is named: of 2048 bins of a histogram, two are left for them."""


class Repeats:
    """Detector of data whose samples are all equal; it stops comparing at the first that differs."""

    def __init__(self) -> None:
        self._first: Feeds | None = None
        self._same = True
        self._seen = 0

    def add(self, feeds: Feeds, samples: int) -> None:
        """Look at one batch."""
        self._seen += samples
        if not self._same:
            return
        if self._first is None:
            self._first = {name: array[:1].copy() if samples > 1 else array.copy() for name, array in feeds.items()}
        self._same = all(_repeats(array, self._first[name]) for name, array in feeds.items())

    def remarks(self, source: str) -> Iterator[str]:
        """Sentences on the data of this name, once all batches were seen."""
        if self._seen > 1 and self._same:
            yield f"all {self._seen} samples of {source} are identical: ranges from them mean little"


class Outliers:
    """Detector of samples that reach much further than most; counts samples by power of two, and holds none."""

    def __init__(self) -> None:
        self._seen = 0
        self._counts: dict[str, Counter[int]] = {}  # input -> exponent -> samples whose largest magnitude has it
        self._first: dict[tuple[str, int], tuple[int, float]] = {}  # the first of these, and its largest magnitude

    def add(self, feeds: Feeds, samples: int) -> None:
        """Look at one batch."""
        for name, array in feeds.items():
            if array.dtype.kind != "f" or not array.size:
                continue
            rows = array.reshape(samples if samples > 1 else 1, -1)
            reached = np.maximum(rows.max(axis=1), -rows.min(axis=1))
            reached[~np.isfinite(reached)] = 0  # masks are no measured values
            exponents, first, counts = np.unique(np.frexp(reached)[1], return_index=True, return_counts=True)
            held = self._counts.setdefault(name, Counter())
            for exponent, index, count in zip(exponents.tolist(), first.tolist(), counts.tolist(), strict=True):
                if reached[index]:
                    held[exponent] += count
                    self._first.setdefault((name, exponent), (self._seen + index, float(reached[index])))
        self._seen += samples

    def remarks(self, source: str) -> Iterator[str]:
        """Sentences on the data of this name, once all batches were seen."""
        for name, counts in self._counts.items():
            usual = _median(counts)
            far = [exponent for exponent in counts if exponent > usual + OUTLIER]
            if far:
                first, reached = min(self._first[name, exponent] for exponent in far)
                others = sum(counts[exponent] for exponent in far) - 1
                yield (
                    f"input {name!r} reaches {reached:.3g} in sample {first}{f' and {others} more' if others else ''} of "
                    f"{source}, and no more than {2.0**usual:.3g} in half of the samples: look for damaged samples, since "
                    "ranges that hold them are too wide for the others"
                )


def _median(counts: Counter[int]) -> int:
    """The least exponent that half of the samples do not exceed; 0 without a sample."""
    passed = 0
    for exponent in sorted(counts):
        passed += counts[exponent]
        if 2 * passed >= counts.total():
            return exponent
    return 0


def _repeats(array: npt.NDArray[Any], first: npt.NDArray[Any]) -> bool:
    if array.shape != first.shape and (first.shape[:1] != (1,) or array.shape[1:] != first.shape[1:]):
        return False
    return bool((array == first).all())
