"""Noise of one array against another, and the signal beside it, as sums, shares and decibels."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import numpy.typing as npt

MOST, FEW = 0.9, 0.2
"""Share of the noise that few values have where a choice came out otherwise, and share of the values that are few. Of
noise that is spread like a normal distribution, so many have 65 %."""


def squares(value: npt.NDArray[Any], reference: npt.NDArray[Any]) -> tuple[float, float]:
    """Sums of squares of ``value - reference`` and of `reference`, in float64, over what is finite in both.

    Args:
        value: numbers of any type and shape.
        reference: of the same shape.
    """
    x, wanted = np.asarray(value, np.float64).ravel(), np.asarray(reference, np.float64).ravel()
    # Masks of -inf are in both, and are no noise.
    finite = np.isfinite(x) & np.isfinite(wanted)
    x, wanted = x[finite], wanted[finite]
    return float(np.square(x - wanted).sum()), float(np.square(wanted).sum())


def decibels(signal: float, noise: float) -> float:
    """``10 log10(signal / noise)``: infinite without noise, minus infinite without signal."""
    if not noise:
        return math.inf
    return 10 * math.log10(signal / noise) if signal else -math.inf


def decibels_of(share: float) -> float:
    """Signal to noise in dB where the noise has this share of the signal's power."""
    return -10 * math.log10(share) if share else math.inf


def share_of(decibels: float) -> float:
    """The share of the signal's power that the noise has at a signal to noise in dB."""
    return float(10 ** (-decibels / 10))


@dataclasses.dataclass(frozen=True)
class Concentration:
    """Noise that nearly all lies in few values.

    Attributes:
        values: share of the values.
        noise: share of the noise that they have.
        rest_db: signal to noise of the other values; infinite where they are equal.
    """

    values: float
    noise: float
    rest_db: float


def concentration(value: npt.NDArray[Any], reference: npt.NDArray[Any], floor: float) -> Concentration | None:
    """The fewest values without which the others are above a floor, where those few have most of the noise.

    Args:
        value: numbers of any type and shape.
        reference: of the same shape.
        floor: signal to noise, in dB.
    """
    x, wanted = np.asarray(value, np.float64).ravel(), np.asarray(reference, np.float64).ravel()
    finite = np.isfinite(x) & np.isfinite(wanted)
    noise, signal = np.square(x - wanted)[finite], np.square(wanted)[finite]
    order = np.argsort(-noise, kind="stable")
    all_noise, noise, signal = noise.sum(), noise[order], signal[order]
    # Of the values from each on, the noisiest first.
    rest, power = (np.append(np.cumsum(part[::-1])[::-1], 0.0) for part in (noise, signal))
    count = int(np.argmax(power >= rest * 10 ** (floor / 10)))
    if not count or count > FEW * noise.size or rest[count] > (1 - MOST) * all_noise:
        return None
    return Concentration(count / noise.size, float(1 - rest[count] / all_noise), decibels(power[count], rest[count]))
