"""Min of tensors on grids of their own and of a constant."""

from __future__ import annotations

from onnxqat.integer_functions.functions import min
from onnxqat.integer_functions.functions._limit import WithConstant


class Function(WithConstant, min.Function):
    """The smallest of its operands and a constant."""

    operator = "MinWithConstant"
    parts = ("Min",)
