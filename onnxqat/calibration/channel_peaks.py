"""Largest values per input channel of a layer in the calibration data."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat.calibration.columns import LAYERS
from onnxqat.graph import query, walk
from onnxqat.types import FloatArray, QuantPlan, TensorSpec


class ChannelPeaks:
    """Largest values per channel of a tensor, and largest sums of two neighbouring channels at one place.

    Args:
        axis: of the channels: 1 for a convolution, -1 for a product of matrices.

    Attributes:
        highest: largest value of each channel, float32 (C,); empty before any data.
        sums: largest sum of channels 0 and 1, 2 and 3, ..., where values below 0 count as 0, float32 (C // 2,); empty
            where C is odd.
        count: values that each channel had.
    """

    def __init__(self, axis: int) -> None:
        self.axis = axis
        self.highest: FloatArray = np.empty(0, np.float32)
        self.sums: FloatArray = np.empty(0, np.float32)
        self.count = 0

    def update(self, values: npt.NDArray[np.generic]) -> None:
        """Take in the values of one batch; an empty array changes nothing."""
        if values.size == 0:
            return
        axis = self.axis % values.ndim
        others = tuple(i for i in range(values.ndim) if i != axis)
        found = values.max(axis=others).astype(np.float32)
        self.count += values.size // len(found)
        self.highest = np.maximum(self.highest, found) if self.highest.size else found
        if len(found) % 2 == 0:
            pairs = values.reshape(*values.shape[:axis], -1, 2, *values.shape[axis + 1 :])
            first, second = (np.maximum(np.take(pairs, i, axis + 1), 0) for i in (0, 1))
            sums = (first + second).max(axis=others).astype(np.float32)
            self.sums = np.maximum(self.sums, sums) if self.sums.size else sums


Peaks = Mapping[str, ChannelPeaks]


def of_plan(plan: QuantPlan, model: ir.Model) -> dict[str, ChannelPeaks]:
    """Return a :class:`ChannelPeaks` for the input of every layer whose weight can make products saturate, by name.

    Args:
        plan: its specs say which weights these are (``saturates``).
        model: prepared float model.
    """
    saturating = {e.tensor for e in plan.edges if isinstance(e.decision, TensorSpec) and e.decision.saturates}
    found: dict[str, ChannelPeaks] = {}
    for node in walk.nodes(model):
        if node.domain or node.op_type not in (*LAYERS, "ConvTranspose") or query.attribute(node, "transA", 0):
            continue
        value, weight = node.inputs[:2]
        if value is not None and weight is not None and weight.name in saturating:
            found.setdefault(str(value.name), ChannelPeaks(input_axis(node)))
    return found


def input_axis(node: ir.Node) -> int:
    """Axis of the input of a layer that its filters sum over."""
    return 1 if node.op_type in ("Conv", "ConvTranspose") else -1
