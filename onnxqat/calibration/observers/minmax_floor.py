"""Power-of-two scales, chosen by error (MQBench's ``MinMaxFloorObserver``, made for Vitis).

The scale of minimum to maximum is rounded up to a power of two (``log2`` of its inverse is floored, hence the name);
that one and the four below it compete.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from onnxqat import numerics
from onnxqat.calibration.observers import mse
from onnxqat.calibration.observers._scaled import Floats, scale_of, with_scale

CANDIDATES = 5
INSIDE = 1 - 2.0**-20  # float32 rounding of a range's ends must not lead to the next power of two


class Observer(mse.Observer):
    """The power of two of five with the least squared error on all data; MQBench looks at the last batch.

    Scales are powers of two whether the spec asks for it or not.
    """

    @property
    def scale_bits(self) -> int | None:
        """One: powers of two."""
        return 1

    def exponents(self) -> npt.NDArray[np.int64]:
        """log2 of the chosen scale, int64 (C,)."""
        error, _ = self._error()
        widest = np.maximum(scale_of(self.low, self.high, self.spec), 2.0**-126)
        first = np.asarray(np.ceil(np.log2(widest) - 2.0**-20), np.int64)
        errors, scheme = [], self.spec.but(axis=0, scale_bits=1)
        for step in range(CANDIDATES):
            low, high = with_scale(self.low, self.high, self.spec, np.ldexp(INSIDE, (first - step).astype(np.int32)))
            start, stop = (np.asarray(end, np.float32) for end in (low, high))
            errors.append(error(numerics.from_range(start, stop, scheme)))
        return np.asarray(first - np.argmin(errors, axis=0), np.int64)

    def _clipped(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        return self._of_exponents(self.exponents())

    def _of_exponents(self, exponents: npt.NDArray[np.int64]) -> tuple[Floats, Floats]:
        scale = np.ldexp(INSIDE, exponents.astype(np.int32))
        return with_scale(self.low, self.high, self.spec, scale)
