"""The range of the observer that costs the network least: the choice is made by the error at its outputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxqat.analysis.read_curves import Curve
from onnxqat.calibration.observers import create
from onnxqat.calibration.observers._base import BaseObserver
from onnxqat.calibration.observers._histogram import HistogramObserver
from onnxqat.types import QParams

PERCENTILES = (99.999, 99.99, 99.9)
"""Shares of the values that candidates cover: outliers of 8-bit networks are some millionths to thousandths of them."""

BEHIND = "mse behind the function"
"""The least squared error behind the activation function that alone reads the tensor. A SiLU of -5 is -0.03: what lies
below needs no codes, and all others get a finer step."""

NAMES = ("minmax", *(f"percentile {share:g}" for share in PERCENTILES), "mse", "entropy", BEHIND)
"""The observers that candidates come of."""


class Observer(HistogramObserver):
    """Keeps one histogram, from which every candidate reads its range.

    :mod:`onnxqat.calibration.range_choice` compares the candidates at the outputs of the network and sets
    :attr:`choice`. Until then, and where nothing can be compared, the range is that of ``mse``, behind the function that
    reads the tensor where there is one.

    Attributes:
        choice: name of a candidate.
        curve: function that alone reads the tensor.
    """

    choice: str = "mse"
    curve: Curve | None = None

    def read_through(self, curve: Curve) -> None:
        """Take `curve` for the function that alone reads the tensor."""
        self.curve, self.choice = curve, BEHIND

    def candidates(self) -> dict[str, QParams]:
        """Parameters by the name of the candidate, the widest range first.

        Equal ones are there once: by the name of the choice where that is one of theirs, else by the first.
        """
        grids = {name: self.read_as(name).qparams() for name in NAMES}
        first = {name: next(n for n, grid in grids.items() if _are_equal(grid, grids[name])) for name in NAMES}
        return {
            self.choice if name == first.get(self.choice) else name: grid
            for name, grid in grids.items()
            if name == first[name]
        }

    def read_as(self, name: str) -> BaseObserver:
        """The observer `name` of the same values, without another look at them; it shares their histogram."""
        made = create(dataclasses.replace(self.spec, observer="mse" if name == BEHIND else name))
        own = ("choice", "spec") if name == BEHIND else ("choice", "spec", "curve")
        vars(made).update({key: value for key, value in vars(self).items() if key not in own})
        return made

    def _rule(self) -> tuple[Hashable, ...]:
        return (*super()._rule(), self.choice, self.curve)

    def _clipped(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        low, high = self.read_as(self.choice).range()
        return np.atleast_1d(low), np.atleast_1d(high)


def _are_equal(first: QParams, second: QParams) -> bool:
    return bool((first.scale == second.scale).all() and (first.zero_point == second.zero_point).all())
