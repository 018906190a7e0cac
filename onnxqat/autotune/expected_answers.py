"""Answers that quantization changes, expected from so few held-out samples that hardly one of theirs changes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating]

PLACES = 20
"""Classes of a sample that are looked at, the largest outputs first: what lies further behind overtakes only where all is lost."""


def changed(known: Array, wanted: Array, found: Array) -> float:
    """Expected number of samples in 100 whose largest output is that of another class.

    The error of each held-out sample, by the place that a class has among its outputs, is added to the outputs of every
    known sample. So the margins of many samples meet the errors of a few, and no shape of either is assumed. It says how
    samples fare whose margins are like those of the known: the margins of images that a network was trained on are larger.

    Args:
        known: outputs (N, C) of the float model for all samples that there are.
        wanted: outputs (n, C) of the float model for held-out samples.
        found: those of the quantized model for the same.
    """
    order = np.argsort(-wanted, axis=1, kind="stable")[:, :PLACES]
    errors = np.take_along_axis(found - wanted, order, axis=1)
    outputs = -np.sort(-known, axis=1)[:, :PLACES]
    shares = [float(((outputs + error).argmax(axis=1) != 0).mean()) for error in errors]
    return 100.0 * float(np.mean(shares))
