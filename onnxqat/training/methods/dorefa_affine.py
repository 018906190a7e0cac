"""DoReFa on the grid of the file: for targets whose weights have no bit to spare for odd codes."""

from __future__ import annotations

from onnxqat.training.methods import dorefa

reference = dorefa.reference


class Method(dorefa.Method):
    """As :class:`onnxqat.training.methods.dorefa.Method`; weights take every code between ``-quant_max`` and ``quant_max``."""

    odd = False
