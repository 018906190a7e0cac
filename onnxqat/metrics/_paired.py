"""Right and wrong answers of two models to the same samples, and the significance of their difference."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import numpy.typing as npt

ERROR = 0.05
"""Chance at which a test may be wrong."""

NORMAL = 1.6448536269514722
"""Standard deviations that a normal number exceeds with the chance :data:`ERROR`."""


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
        right: number that the quantized model answers right.
        lost: number that only the float model answers right.
        won: number that only the quantized model answers right.
        commonest: see :class:`Answers`.
    """

    samples: int
    right: int
    lost: int
    won: int
    commonest: float

    @property
    def worse(self) -> bool:
        """Check whether equally good models would lose so much with a chance below :data:`ERROR` (sign test)."""
        return at_least(self.lost, self.lost + self.won, 0.5) < ERROR

    @property
    def most_lost(self) -> float:
        """Largest true difference of lost and won that the samples are compatible with, as a share; at most 1.

        It is the upper end of Tango's score interval for the difference of paired shares, one-sided.
        """
        if not self.samples:
            return 1.0
        low, high = (self.lost - self.won) / self.samples, 1.0
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if self._deviation(middle) < NORMAL else (low, middle)
        return high

    def _deviation(self, difference: float) -> float:
        """Standard deviations by which the difference that was seen lies below `difference`."""
        n, spread = self.samples, difference * (1 - difference)
        half = (2 * n - self.lost + self.won) * difference - self.lost - self.won
        won = (math.sqrt(half**2 + 8 * n * self.won * spread) - half) / (
            4 * n
        )  # the likeliest share, given `difference`
        variance = n * (2 * won + spread)
        below = n * difference - (self.lost - self.won)
        return below / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, below)

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
