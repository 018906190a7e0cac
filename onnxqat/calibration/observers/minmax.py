"""The whole range that was seen: nothing is clipped."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from onnxqat.calibration.observers._base import BaseObserver
from onnxqat.types import FloatArray


class Observer(BaseObserver):
    """Exact minimum and maximum, per tensor or per channel of any axis."""

    def _accumulate(self, rows: npt.NDArray[Any]) -> None:
        """The base class keeps minimum and maximum."""

    def _absorb(self, other: BaseObserver) -> None:
        """The base class keeps minimum and maximum."""

    def _clipped(self) -> tuple[FloatArray, FloatArray]:
        return self.low, self.high
