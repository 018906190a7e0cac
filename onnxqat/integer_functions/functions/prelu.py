"""PRelu by two multipliers, one of them for each channel or for each slope that there is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from onnxqat.integer_functions.definition import Call, CodeGrid, Constants
from onnxqat.integer_functions.functions._sloped import Sloped


class Function(Sloped):
    """``x`` where it is not negative, ``slope * x`` elsewhere; the slope has the shape in which it multiplies."""

    operator = "PRelu"
    weights = ("slope",)

    def slopes(self, call: Call) -> npt.NDArray[np.float64]:
        """See the base class."""
        return np.asarray(call.parameters.get("slope", 0.0), np.float64)

    def parameters(
        self, constants: Constants, grids: Sequence[CodeGrid], y: CodeGrid
    ) -> dict[str, npt.NDArray[np.float64]]:
        """See the base class."""
        unit = y.scale / grids[0].scale * 2.0 ** -int(constants["y_shift"])
        return {"slope": np.asarray(constants["slope"] * unit, np.float64)}
