"""GroupNormalization of codes: the channels of a group and all their places are a row."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from onnxqat.integer_functions.definition import Call
from onnxqat.integer_functions.functions._by_channel import ByChannel
from onnxqat.integer_functions.operations import ArrayOperations, Integers, Operations


class Function(ByChannel):
    """``(x - mean) / sqrt(variance + epsilon) * gamma + beta`` over the channels of a group, of opset 21."""

    operator = "GroupNormalization"
    attributes = ("epsilon", "num_groups")
    since = 21

    def _rows(self, do: Operations, q: Integers) -> Integers:
        """See the base class."""
        return do.grouped(q)

    def _of_rows(self, do: Operations, x: Integers, q: Integers) -> Integers:
        """See the base class."""
        return do.shaped_like(x, q)

    def reference(self, values: npt.NDArray[np.float64], call: Call) -> npt.NDArray[np.float64]:
        """See the base class."""
        gamma, beta = self._weights(call)
        plain = dataclasses.replace(call, parameters={})
        do = ArrayOperations(call.axes, groups=int(call.attributes["num_groups"]))
        rows = super().reference(do.grouped(values), plain)
        return np.asarray(rows.reshape(values.shape) * gamma + beta)
