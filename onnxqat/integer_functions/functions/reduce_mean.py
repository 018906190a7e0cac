"""ReduceMean: the mean along axes."""

from __future__ import annotations

from onnxqat.integer_functions.functions._mean import Mean


class Function(Mean):
    """The mean of each row."""

    operator = "ReduceMean"
