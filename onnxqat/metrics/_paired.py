"""Right and wrong answers of two models to the same samples, and what so few or many of them show."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import numpy.typing as npt

ERROR = 0.05
"""Chance at which an exact test may be wrong."""


@dataclasses.dataclass(frozen=True)
class Answers:
    """Answers of one model.

    Attributes:
        right: whether each sample was answered right.
        commonest: share of the samples whose label is the commonest one: what a model scores that ignores its input.
    """

    right: npt.NDArray[np.bool_]
    commonest: float


@dataclasses.dataclass(frozen=True)
class Paired:
    """Answers of a quantized model beside those of the float model.

    Attributes:
        samples: number of samples.
        right: what the quantized model answers right.
        lost: of these, what only the float model answers right.
        won: what only the quantized model answers right.
        commonest: see :class:`Answers`.
    """

    samples: int
    right: int
    lost: int
    won: int
    commonest: float

    @property
    def worse(self) -> bool:
        """Equally good models would lose so many more than they win in less than :data:`ERROR` of the cases."""
        return at_least(self.lost, self.lost + self.won, 0.5) < ERROR

    @property
    def better(self) -> bool:
        """Equally good models would win so many more than they lose in less than :data:`ERROR` of the cases."""
        return at_least(self.won, self.lost + self.won, 0.5) < ERROR

    @property
    def most_lost(self) -> float:
        """The largest share of all samples there are that may be lost: Clopper and Pearson's bound, one-sided."""
        if self.lost >= self.samples:
            return 1.0
        low, high = self.lost / self.samples, 1.0
        for _ in range(40):  # of at most `lost` there is a chance that falls with the share
            middle = (low + high) / 2
            low, high = (middle, high) if 1 - at_least(self.lost + 1, self.samples, middle) > ERROR else (low, middle)
        return high

    @property
    def tells(self) -> bool:
        """The answers depend on the input: more are right than of a model that always gives the commonest one."""
        return at_least(self.right, self.samples, self.commonest) < ERROR


def pair(original: Answers, quantized: Answers) -> Paired:
    """The answers of two models to the same samples."""
    lost = int((original.right & ~quantized.right).sum())
    won = int((quantized.right & ~original.right).sum())
    return Paired(len(quantized.right), int(quantized.right.sum()), lost, won, quantized.commonest)


def at_least(count: int, trials: int, share: float) -> float:
    """Chance of `count` and more successes in `trials` independent ones, each with the chance `share`."""
    if count <= 0 or share >= 1.0:
        return 1.0
    if share <= 0.0:
        return 0.0
    won, lost, whole = math.log(share), math.log1p(-share), math.lgamma(trials + 1)
    terms = (
        math.exp(whole - math.lgamma(k + 1) - math.lgamma(trials - k + 1) + k * won + (trials - k) * lost)
        for k in range(count, trials + 1)
    )
    return min(math.fsum(terms), 1.0)


def commonest(labels: npt.NDArray[Any]) -> float:
    """Share of the commonest of `labels`."""
    return float(np.unique(labels, return_counts=True)[1].max() / labels.size) if labels.size else 1.0
