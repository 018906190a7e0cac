"""The start value of LSQ: ``scale = 2 * mean|x| / sqrt(Qp)`` (Esser et al., ICLR 2020, section 2.1)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from onnxqat.calibration.observers._base import BaseObserver
from onnxqat.calibration.observers._scaled import Floats, with_scale
from onnxqat.types import TensorSpec


class Observer(BaseObserver):
    """The range that leads to that scale, where it is narrower than minimum to maximum: at few bits.

    ``Qp`` counts the codes above zero.
    """

    def __init__(self, spec: TensorSpec) -> None:
        super().__init__(spec)
        self._sum: Floats = np.zeros(1)

    def _accumulate(self, rows: npt.NDArray[Any]) -> None:
        self._sum = self._sum + np.abs(rows).sum(axis=1, dtype=np.float64)

    def _absorb(self, other: BaseObserver) -> None:
        assert isinstance(other, Observer)
        self._sum = self._sum + other._sum  # noqa: SLF001 - of the same class

    def _clipped(self) -> tuple[Floats, Floats]:
        scale = 2 * self._sum / self.count / np.sqrt(self.spec.codes_above)
        return with_scale(self.low, self.high, self.spec, scale)
