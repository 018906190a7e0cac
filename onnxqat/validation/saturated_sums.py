"""Sums of two 8-bit products that leave 16 bits, counted on the codes that layers read in validation.

Processors without VNNI saturate them (:mod:`onnxqat.calibration.saturation`). Weights are kept from that for the
activations of the calibration data; other data can have larger ones, and training moves weights. It is counted on any
processor, from the codes, as the instruction would add them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat.calibration import columns, integer_layers, largest_codes, saturation
from onnxqat.calibration.channel_peaks import input_axis
from onnxqat.calibration.largest_codes import LargestCodes
from onnxqat.counts import counted
from onnxqat.graph import qdq, query, walk
from onnxqat.graph.quantizer import Quantizer
from onnxqat.types import QParams, Remark
from onnxqat.validation import parity

Array = npt.NDArray[Any]
SMALLEST = -(2**15)
_BYTES = {ir.DataType.INT8: "int8", ir.DataType.UINT8: "uint8"}


@dataclasses.dataclass(frozen=True)
class Source:
    """A tensor that holds the codes which a layer reads, or their dequantized values.

    Attributes:
        name: of the tensor.
        zero_point: of the codes.
        storage: int8 or uint8.
        grid: on which the tensor lies, dequantized; None where it holds the codes.
    """

    name: str
    zero_point: int
    storage: str
    grid: QParams | None = None

    @property
    def shift(self) -> int:
        """Offset of the kernel's unsigned codes from :meth:`steps`."""
        return self.zero_point + (largest_codes.SHIFT if self.storage == "int8" else 0)

    def steps(self, values: Array) -> npt.NDArray[np.int64]:
        """Return the codes minus their zero point."""
        if self.grid is not None:
            return parity.codes_of(values, self.grid)
        return np.asarray(values.astype(np.int64) - self.zero_point)


class SumMeter:
    """The sums of one layer over batches; holds no batch.

    Args:
        node: the layer.
        plain: the same, or the float layer that adds the products of an operator on codes.
        source: of the codes of its input.
        codes: int8 codes of its weight.

    Attributes:
        count: sums that left 16 bits.
        channels: output channels in which some did.
    """

    def __init__(self, node: ir.Node, plain: ir.Node, source: Source, codes: Array) -> None:
        self.node, self.plain, self.source, self._codes = node, plain, source, codes
        self.count, self.channels = 0, set[int]()

    def update(self, values: Array) -> None:
        """Count in one batch of the source."""
        steps = self.source.steps(values)
        if not steps.size:
            return
        bounds = saturation.pair_bounds(self.plain, self._codes, self._largest(steps))
        if bounds is None or not (bounds > saturation.LIMIT).any():
            return
        rows, pairs = np.nonzero(bounds > saturation.LIMIT)
        for sample in steps if self.plain.op_type == "Conv" else [steps]:
            self._count(sample[None] if self.plain.op_type == "Conv" else sample, rows, pairs)

    def _largest(self, steps: npt.NDArray[np.int64]) -> LargestCodes:
        """The largest codes of these very values; padding has the code of 0."""
        moved = np.moveaxis(steps, input_axis(self.plain), 0)
        flat = np.maximum(moved.reshape(len(moved), -1), 0)
        sums = flat[0::2] + flat[1::2] if len(flat) % 2 == 0 else flat[:0]
        return LargestCodes(flat.max(1) + self.source.shift, sums.max(1, initial=0) + 2 * self.source.shift)

    def _count(self, steps: npt.NDArray[np.int64], rows: Array, pairs: Array) -> None:
        """Add what `pairs` of the filters `rows` come to at all places of one input."""
        shape, node = self._codes.shape, self.plain
        found = columns.columns_of(steps.astype(np.float32), node, shape, places=steps.size) + self.source.shift
        weights = saturation.products(node, self._codes)
        order = saturation.products(node, np.arange(self._codes.size).reshape(shape))
        assert weights is not None
        assert order is not None
        # Filters have their inputs in the order of the columns, and products in that of the kernel.
        places = order[0] if node.op_type == "Conv" else np.arange(weights.shape[1])
        filters = len(weights) // len(found)
        for row, pair in zip(rows, pairs, strict=True):
            which = slice(2 * pair, 2 * pair + 2)
            sums = found[row // filters][:, places[which]] @ weights[row, which].astype(np.float32)
            outside = int(np.count_nonzero((sums > saturation.LIMIT) | (sums < SMALLEST)))
            self.count += outside
            self.channels |= {int(row)} if outside else set()


@dataclasses.dataclass(frozen=True)
class Watched:
    """Layers whose sums could leave 16 bits, if their input had any code.

    Attributes:
        meters: of those that are counted.
        others: those that are not: in bodies of If, Loop or Scan, products of stacks of matrices, and those whose zero
            point is known only as the file runs.
    """

    meters: tuple[SumMeter, ...] = ()
    others: tuple[ir.Node, ...] = ()

    @property
    def codes(self) -> list[str]:
        """The tensors of codes that :meth:`update` wants besides the dequantized inputs, those that nodes make."""
        return [m.source.name for m in self.meters if m.source.grid is None]

    @property
    def hit(self) -> bool:
        """A sum left 16 bits."""
        return any(meter.count for meter in self.meters)

    def update(self, values: Mapping[str, Array]) -> None:
        """Let all meters see their tensor, those that have one among `values`."""
        for meter in self.meters:
            if meter.source.name in values:
                meter.update(values[meter.source.name])

    def remarks(self, samples: int) -> list[Remark]:
        """Return the counts over `samples` samples as remarks; none for a file that no input can make saturate."""
        found = [self._remark_on_sums(samples)] if self.meters and samples else []
        if self.others and samples:
            text = (
                f"sums of two 8-bit products can leave 16 bits in {counted(len(self.others), 'layer')} in which they were not "
                "counted, and saturate on processors without VNNI"
            )
            found.append(Remark(text, tuple(map(query.label, self.others)), "machine"))
        return found

    def _remark_on_sums(self, samples: int) -> Remark:
        hit = [meter for meter in self.meters if meter.count]
        if not hit:
            so = "" if self.others else ", so that processors without VNNI compute the same"
            text = (
                f"no sum of two 8-bit products leaves 16 bits on {counted(samples, 'sample')}{so}; other inputs could make "
                f"{counted(len(self.meters), 'layer')} do so"
            )
            return Remark(text, source="machine")
        text = (
            f"{counted(sum(m.count for m in hit), 'sum')} of two 8-bit products leave 16 bits on {counted(samples, 'sample')}, in "
            f"{counted(sum(len(m.channels) for m in hit), 'channel')} of {counted(len(hit), 'layer')}, and saturate on processors without "
            "VNNI: calibrate on more samples, or insert-qdq --safe-range raises the scales for any input"
        )
        return Remark(text, tuple(query.label(meter.node) for meter in hit), "machine")


def watch(model: ir.Model) -> Watched:
    """The layers of `model` to count in, and those that can not be counted in."""
    by_output = qdq.by_output(qdq.quantizers(model))
    main = {id(node) for node in model.graph}
    meters, others = list[SumMeter](), list[ir.Node]()
    for node in walk.nodes(model):
        layer = integer_layers.of(node)
        plain, weight = (node, _weight(node, by_output)) if layer is None else (layer.plain, layer.weight)
        if weight is None or not saturation.saturating(plain, weight):
            continue
        if layer is None and not _reads_bytes(node, by_output):
            continue
        source = _of_pair(node, by_output) if layer is None else _of_codes(layer.codes, layer.zero_point)
        stack = (plain.op_type != "Conv" and weight.ndim != 2) or query.attribute(plain, "transA", 0)
        if source is None or stack or id(node) not in main:
            others.append(node)
        else:
            meters.append(SumMeter(node, plain, source, weight))
    return Watched(tuple(meters), tuple(others))


def _weight(node: ir.Node, by_output: Mapping[int, Quantizer]) -> Array | None:
    if node.op_type not in saturation.SESSION_LAYERS or node.domain or len(node.inputs) < 2:
        return None
    weight = by_output.get(id(node.inputs[1]))
    return None if weight is None else saturation.codes_of(weight)


def _reads_bytes(node: ir.Node, by_output: Mapping[int, Quantizer]) -> bool:
    """Check whether the input of a layer comes out of a DequantizeLinear of 8-bit codes that are no constant."""
    pair = by_output.get(id(node.inputs[0]))
    if pair is not None:
        return not pair.stored and largest_codes.is_byte(pair.qparams)
    codes, zero = _dequantized(node)
    return codes is not None and query.constant_tensor(codes) is None and _storage(codes, zero) != ""


def _dequantized(node: ir.Node) -> tuple[ir.Value | None, ir.Value | None]:
    """Codes and zero point of the DequantizeLinear in front of a layer, both None without."""
    maker = query.producer(node.inputs[0])
    if not qdq.is_dequantize(maker):
        return None, None
    return maker.inputs[0], query.input_at(maker, 2)


def _of_pair(node: ir.Node, by_output: Mapping[int, Quantizer]) -> Source | None:
    value = node.inputs[0]
    assert value is not None
    pair = by_output.get(id(value))
    if pair is None:  # its scale is computed
        return _of_codes(*_dequantized(node))
    zero = pair.qparams.zero_point
    return (
        Source(str(value.name), int(zero.flat[0]), pair.qparams.qtype.storage, pair.qparams) if zero.size == 1 else None
    )


def _of_codes(codes: ir.Value | None, zero: ir.Value | None) -> Source | None:
    found = np.zeros(1, np.uint8) if zero is None else query.constant_array(zero)
    storage = _storage(codes, zero)
    if codes is None or storage == "" or found is None or found.size != 1:
        return None
    return Source(str(codes.name), int(found.flat[0]), storage)


def _storage(codes: ir.Value | None, zero: ir.Value | None) -> str:
    """int8 or uint8; empty for other codes. QuantizeLinear without a zero point gives uint8."""
    known = [v.dtype for v in (zero, codes) if v is not None and v.dtype is not None]
    return _BYTES.get(known[0], "") if known else "uint8"
