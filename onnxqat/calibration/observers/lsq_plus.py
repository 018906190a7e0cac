"""The start value of LSQ+ for weights: three standard deviations around the mean, on both sides of zero.

Bhalgat et al., CVPR Workshops 2020, section 3.2.1. For activations the paper minimizes the squared error: ``mse``.
"""

from __future__ import annotations

import numpy as np

from onnxqat.calibration.observers._moments import Floats, MomentsObserver


class Observer(MomentsObserver):
    """``-a .. a`` with ``a = max(|mean - 3 * std|, |mean + 3 * std|)``, cut to the values seen."""

    def _clipped(self) -> tuple[Floats, Floats]:
        reach = np.abs(self.mean) + 3 * self.deviation
        return np.clip(-reach, self.low, self.high), np.clip(reach, self.low, self.high)
