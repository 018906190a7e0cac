"""Min of tensors on grids of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from onnxqat.integer_functions.functions._extreme import Extreme
from onnxqat.integer_functions.operations import Integers, Operations


class Function(Extreme):
    """The smallest of its operands."""

    operator = "Min"

    def chosen(self, do: Operations, a: Integers, b: Integers) -> Integers:
        """See the base class."""
        return do.smaller(a, b)

    def of_values(self, values: Any) -> npt.NDArray[np.float64]:
        """See the base class."""
        return np.asarray(np.minimum.reduce(np.broadcast_arrays(*values)))
