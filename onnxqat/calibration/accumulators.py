"""Sums that layers can reach, from the codes of their weights: how wide an accumulator has to be for any input.

A sum of products is linear in each step of the input, so that it is largest where every step is at the end of its grid
that its weight asks for: with steps ``low <= d <= high`` and weights ``w``, a channel lies between
``sum(min(w * low, w * high))`` and ``sum(max(w * low, w * high))``. Zero is a step, as the zero point is a code. So no
term of the first sum is positive and none of the second negative, and the ends hold for every part of the products too:
for each partial sum, in whatever order they are added, and for places in the padding, which are left out.

The bias is an operand of the same accumulator, first or last: it moves an end outwards alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat import numerics
from onnxqat.calibration.columns import filters_of
from onnxqat.graph import data_movement, qdq, query, walk
from onnxqat.graph.layers import LAYERS
from onnxqat.graph.quantizer import Quantizer
from onnxqat.integer_functions.tracing import bits
from onnxqat.types import IntArray

"""Operators with an accumulator of products."""

Steps = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""Smallest and largest step of an input: of the whole tensor (), or of each of its channels (C,)."""


@dataclasses.dataclass(frozen=True, eq=False)
class Ends:
    """Smallest and largest number that any partial sum of each output channel can be, int64 (M,).

    Of a stack of matrices, M counts the columns of all of them.
    """

    low: IntArray
    high: IntArray

    @property
    def widest(self) -> int:
        """The channel that needs the most bits: of those, the one that reaches furthest."""
        return int(np.argmax(np.maximum(self.high, -self.low - 1)))

    @property
    def bits(self) -> int:
        """Bits of the smallest signed accumulator that holds all channels."""
        return bits(int(self.low.min(initial=0)), int(self.high.max(initial=0)))


@dataclasses.dataclass(frozen=True, eq=False)
class Layer:
    """A layer whose input and weight lie on integer grids.

    Attributes:
        node: Conv, ConvTranspose, Gemm or MatMul.
        input: quantizer of its first input, perhaps moved from there.
        weight: quantizer of its second input.
        codes: steps of the weight, int64, in the weight's shape; None where it is computed.
        bias: codes of its bias, int64 (M,); None without one.
    """

    node: ir.Node
    input: Quantizer
    weight: Quantizer
    codes: IntArray | None
    bias: IntArray | None

    @property
    def steps(self) -> Steps:
        """Smallest and largest step of the input, for any input of the network."""
        return steps_of(self.input)

    def ends(self, steps: Steps | None = None) -> Ends | None:
        """Return what the channels can reach; None for a weight that is computed.

        Args:
            steps: of the input; those of its grid by default.
        """
        if self.codes is None:
            return None
        return ends(filters_of(self.codes, self.node), self.steps if steps is None else steps, self.bias)


def ends(filters: npt.NDArray[np.int64], steps: Steps, bias: IntArray | None = None) -> Ends:
    """Return what the sums of filters can reach.

    Args:
        filters: steps of a weight, (groups, M, D), as :func:`onnxqat.calibration.columns.filters_of` gives them.
        steps: of the input, of the tensor, or of each channel: as many a group as divide D.
        bias: codes, (groups * M,).
    """
    groups, count, inputs = filters.shape
    low, high = (np.minimum(steps[0], 0), np.maximum(steps[1], 0))
    if low.ndim:  # the channels of a group, each at all its places in the window
        each = low.size // groups
        low, high = (np.repeat(e.reshape(groups, 1, each), inputs // each, axis=2) for e in (low, high))
    least = np.minimum(filters * low, filters * high).sum(2).reshape(groups * count)
    most = np.maximum(filters * low, filters * high).sum(2).reshape(groups * count)
    if bias is not None:
        added = np.broadcast_to(bias, least.shape)
        least, most = least + np.minimum(added, 0), most + np.maximum(added, 0)
    return Ends(least, most)


def steps_of(quantizer: Quantizer) -> Steps:
    """Smallest and largest step that `quantizer` gives: the ends of its grid, and of a Relu or Clip in front of it."""
    grid, zero = quantizer.qparams.qtype, quantizer.qparams.zero_point.astype(np.int64)
    low, high = grid.quant_min - zero.max(), grid.quant_max - zero.min()
    least, most = _limits(quantizer.input)
    scale = quantizer.qparams.scale
    if scale.ndim == 0:
        low = low if least is None else max(low, int(np.rint(np.float32(least) / scale)))
        high = high if most is None else min(high, int(np.rint(np.float32(most) / scale)))
    return np.asarray(min(low, 0), np.int64), np.asarray(max(high, 0), np.int64)


def _limits(value: ir.Value) -> tuple[float | None, float | None]:
    """Smallest and largest value that a Relu or Clip leaves; kernels leave the same to the requantization."""
    node = value.producer()
    if node is None or node.domain or node.op_type not in ("Relu", "Clip"):
        return None, None
    if node.op_type == "Relu":
        return 0.0, None
    given = [query.constant_array(query.input_at(node, index)) for index in (1, 2)]
    named = [query.attribute(node, name, None) for name in ("min", "max")]
    found = [n if g is None else float(g) for g, n in zip(given, named, strict=True)]
    return found[0], found[1]


def layers(model: ir.Model) -> Iterator[Layer]:
    """Yield the layers of `model` whose input and weight lie on integer grids, in graph order."""
    found = qdq.quantizers(model)
    grids = data_movement.carried(found)
    biases = qdq.by_output(q for q in found if q.role == "bias")
    for node in walk.nodes(model):
        layer = _layer(node, grids, biases)
        if layer is not None:
            yield layer


def _layer(node: ir.Node, grids: Mapping[int, Quantizer], biases: Mapping[int, Quantizer]) -> Layer | None:
    if node.op_type not in LAYERS or node.domain or len(node.inputs) < 2:
        return None
    value, orders = node.inputs[1], list[list[int]]()
    while value is not None and id(value) not in grids:  # compilers fold a Transpose of a weight
        turn = value.producer()
        if turn is None or turn.op_type != "Transpose" or turn.domain or value.shape is None:
            return None
        orders.append([int(axis) for axis in query.attribute(turn, "perm", range(len(value.shape))[::-1])])
        value = turn.inputs[0]
    source, weight = grids.get(id(node.inputs[0])), grids.get(id(value))
    if source is None or weight is None or source.qparams.axis is not None or source.role != "activation":
        return None
    codes = _steps(weight)
    for order in reversed(orders) if codes is not None else ():
        codes = codes.transpose(order)  # type: ignore[union-attr]
    return Layer(node, source, weight, codes, _bias(node, source, weight, biases))


def _steps(weight: Quantizer) -> IntArray | None:
    """Codes of a constant weight less its zero point."""
    held, qparams = query.constant_array(weight.input), weight.qparams
    if held is None or (qparams.axis is not None and held.shape[qparams.axis] != qparams.scale.size):
        return None  # the latter no runtime takes; lint says so
    codes = np.asarray(held if weight.stored else numerics.quantize(held, qparams), np.int64)
    return np.asarray(codes - numerics.spread(qparams.zero_point, qparams, codes.shape).astype(np.int64))


def _bias(node: ir.Node, source: Quantizer, weight: Quantizer, biases: Mapping[int, Quantizer]) -> IntArray | None:
    value = query.input_at(node, 2)
    if value is None:
        return None
    stored = biases.get(id(value))
    held = query.constant_array(value if stored is None else stored.input)
    if held is None:
        return None
    unit = qdq.accumulator(source.qparams, weight.qparams, held.size)
    if stored is None:  # a float bias: kernels put it on the grid of their sums
        codes = numerics.quantize(held.reshape(-1).astype(np.float32), unit)
    else:
        codes = held if stored.stored else numerics.quantize(held, stored.qparams)
        if stored.qparams.qtype.storage != "int32":  # on a grid of its own, which is shifted to that of the sums
            values = numerics.dequantize(codes, stored.qparams).astype(np.float64)
            codes = np.rint(values.reshape(-1) / unit.scale.astype(np.float64))
    return np.asarray(codes, np.int64).reshape(-1)
