"""Max of tensors on grids of their own and of a constant."""

from __future__ import annotations

from onnxqat.integer_functions.functions import max
from onnxqat.integer_functions.functions._limit import WithConstant


class Function(WithConstant, max.Function):
    """The largest of its operands and a constant."""

    operator = "MaxWithConstant"
    parts = ("Max",)
