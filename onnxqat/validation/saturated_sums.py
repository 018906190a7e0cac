"""Sums of two 8-bit products that leave 16 bits, counted on the codes that layers read in validation.

Processors without VNNI saturate them (:mod:`onnxqat.calibration.saturation`). Weights are kept from that for the
activations of the calibration data; other data can have larger ones, and training moves weights. It is counted on any
processor, from the codes, as the instruction would add them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat.calibration import columns, largest_codes, saturation
from onnxqat.calibration.channel_peaks import input_axis
from onnxqat.calibration.largest_codes import LargestCodes
from onnxqat.graph import qdq, query
from onnxqat.graph.qdq import Quantizer
from onnxqat.types import Remark
from onnxqat.validation import parity

Array = npt.NDArray[Any]
SMALLEST = -(2**15)


class SumMeter:
    """The sums of one layer over batches; holds no batch.

    Args:
        node: the layer.
        activation: quantizer of its input.
        codes: int8 codes of its weight.

    Attributes:
        source: name of the dequantized input.
        count: sums that left 16 bits.
        channels: output channels in which some did.
    """

    def __init__(self, node: ir.Node, activation: Quantizer, codes: Array) -> None:
        self.node, self.source = node, str(activation.outputs[0].name)
        self._grid, self._codes = activation.qparams, codes
        self._shift = int(self._grid.zero_point) + (largest_codes.SHIFT if self._grid.qtype.storage == "int8" else 0)
        self.count, self.channels = 0, set[int]()

    def update(self, dequantized: Array) -> None:
        """Count in one batch of the layer's input."""
        steps = parity.codes_of(dequantized, self._grid)
        if not steps.size:
            return
        bounds = saturation.pair_bounds(self.node, self._codes, self._largest(steps))
        if bounds is None or not (bounds > saturation.LIMIT).any():
            return
        rows, pairs = np.nonzero(bounds > saturation.LIMIT)
        for sample in steps if self.node.op_type == "Conv" else [steps]:
            self._count(sample[None] if self.node.op_type == "Conv" else sample, rows, pairs)

    def _largest(self, steps: npt.NDArray[np.int64]) -> LargestCodes:
        """The largest codes of these very values; padding has the code of 0."""
        moved = np.moveaxis(steps, input_axis(self.node), 0)
        flat = np.maximum(moved.reshape(len(moved), -1), 0)
        sums = flat[0::2] + flat[1::2] if len(flat) % 2 == 0 else flat[:0]
        return LargestCodes(flat.max(1) + self._shift, sums.max(1, initial=0) + 2 * self._shift)

    def _count(self, steps: npt.NDArray[np.int64], rows: Array, pairs: Array) -> None:
        """Add what `pairs` of the filters `rows` come to at all places of one input."""
        shape = self._codes.shape
        found = columns.columns_of(steps.astype(np.float32), self.node, shape, places=steps.size) + self._shift
        weights = saturation.products(self.node, self._codes)
        order = saturation.products(self.node, np.arange(self._codes.size).reshape(shape))
        assert weights is not None
        assert order is not None
        # Filters have their inputs in the order of the columns, and products in that of the kernel.
        places = order[0] if self.node.op_type == "Conv" else np.arange(weights.shape[1])
        filters = len(weights) // len(found)
        for row, pair in zip(rows, pairs, strict=True):
            which = slice(2 * pair, 2 * pair + 2)
            sums = found[row // filters][:, places[which]] @ weights[row, which].astype(np.float32)
            outside = int(np.count_nonzero((sums > saturation.LIMIT) | (sums < SMALLEST)))
            self.count += outside
            self.channels |= {int(row)} if outside else set()


def meters(model: ir.Model) -> list[SumMeter]:
    """A meter for each layer of the main graph whose sums could leave 16 bits, if its input had any code."""
    by_output = qdq.by_output(qdq.quantizers(model))
    found = []
    for node in model.graph:
        if node.op_type not in saturation.LAYERS or node.domain or query.attribute(node, "transA", 0):
            continue
        activation, weight = (by_output.get(id(value)) for value in node.inputs[:2])
        codes = None if weight is None else saturation.codes_of(weight)
        if activation is None or activation.stored or codes is None or (node.op_type != "Conv" and codes.ndim != 2):
            continue
        if largest_codes.is_byte(activation.qparams) and saturation.saturating(node, codes):
            found.append(SumMeter(node, activation, codes))
    return found


def update(watched: Sequence[SumMeter], values: Mapping[str, Array]) -> None:
    """Let all meters see their tensor, those that have one among `values`."""
    for meter in watched:
        if meter.source in values:
            meter.update(values[meter.source])


def remarks(watched: Sequence[SumMeter], samples: int) -> list[Remark]:
    """What was counted on so many samples; nothing for a file that cannot saturate, whatever its inputs."""
    if not watched or not samples:
        return []
    hit = [meter for meter in watched if meter.count]
    if not hit:
        text = (
            f"no sum of two 8-bit products leaves 16 bits on {samples} samples, so that processors without VNNI compute "
            f"the same; other inputs could make {len(watched)} layers do so"
        )
        return [Remark(text, source="machine")]
    text = (
        f"{sum(m.count for m in hit)} sums of two 8-bit products leave 16 bits on {samples} samples, in "
        f"{sum(len(m.channels) for m in hit)} channels of {len(hit)} layers, and saturate on processors without VNNI: "
        "calibrate on more samples, or insert-qdq --safe-range raises the scales for any input"
    )
    return [Remark(text, tuple(query.label(meter.node) for meter in hit), "machine")]
