"""Proofs about the integers of a QDQ file, from the file alone: sums of layers, shifts behind them, stages of functions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat.calibration import accumulators
from onnxqat.calibration.accumulators import Ends, Layer, Steps
from onnxqat.calibration.columns import filters_of
from onnxqat.graph import data_movement, qdq, query, walk
from onnxqat.graph.layers import CONVOLUTIONS, LAYERS
from onnxqat.graph.quantizer import Quantizer
from onnxqat.integer_functions import calls
from onnxqat.integer_functions.tracing import Stage, bits

INT32 = 2**31 - 1
MULTIPLIER_BITS = 31
"""Bits of the multiplier behind a sum (``QuantizeMultiplier`` of TensorFlow Lite)."""


@dataclasses.dataclass(frozen=True)
class SumProof:
    """The sums of a layer, or of a pool.

    Attributes:
        node: its name.
        operator: its type.
        input: tensor that it reads, as its quantizer is called.
        weight: tensor of its weight; of a pool the input again.
        channels: output channels that were looked at; of computed weights and of pools 1.
        products: terms of a sum; None where the graph does not say how many.
        low: smallest number that any partial sum can be, for any input; None where `products` is.
        high: largest number.
        bits: of the smallest safe accumulator, for any input; None where `products` is None.
        channel: output channel that needs most.
        longest: most terms of which 32 bits hold any sum; None where their number is known.
        shifts: least and most shift to the right behind the product with a multiplier of 31 bits, over the channels;
            below 0 a shift to the left in front of it. None where no quantizer reads the result.
        power_of_two_shifts: least and most shift that replaces it where all scales are powers of two, else None.
    """

    node: str
    operator: str
    input: str
    weight: str
    channels: int
    products: int | None
    low: int | None
    high: int | None
    bits: int | None
    channel: int | None
    longest: int | None
    shifts: tuple[int, int] | None
    power_of_two_shifts: tuple[int, int] | None


@dataclasses.dataclass(frozen=True)
class FunctionProof:
    """A call of an integer function.

    Attributes:
        node: its name.
        function: its name.
        stages: intermediate results with their ends.
        bits: of the widest one.
        shifts: shifts of the call by the name of the constant: least and most.
    """

    node: str
    function: str
    stages: tuple[Stage, ...]
    bits: int
    shifts: dict[str, tuple[int, int]]


@dataclasses.dataclass(frozen=True)
class Unproved:
    """A layer about which nothing is proved.

    Attributes:
        node: its name.
        reason: cause.
    """

    node: str
    reason: str


def layers(model: ir.Model) -> Iterator[tuple[Layer, SumProof]]:
    """Yield the layers on integer grids with what is proved of each, for any input."""
    results = _results(model)
    for layer in accumulators.layers(model):
        ends = layer.ends()
        if ends is None:
            yield layer, _of_two_inputs(layer, results)
            continue
        codes, node = layer.codes, layer.node
        assert codes is not None
        filters = filters_of(codes, node)
        yield (
            layer,
            dataclasses.replace(
                _proof(node, layer.input, layer.weight, results),
                channels=filters.shape[0] * filters.shape[1],
                products=filters.shape[2],
                low=int(ends.low.min(initial=0)),
                high=int(ends.high.max(initial=0)),
                bits=ends.bits,
                channel=ends.widest,
            ),
        )


def on_steps(layer: Layer, steps: Steps) -> Ends | None:
    """Return the ends for steps that data had, where their channels are those of the weight."""
    if layer.codes is None or query.attribute(layer.node, "transA", 0):
        return None
    groups, _, inputs = filters_of(layer.codes, layer.node).shape
    known = steps[0].ndim == 0 or (steps[0].size % groups == 0 and inputs % (steps[0].size // groups) == 0)
    return layer.ends(steps) if known else None


def pools(model: ir.Model) -> Iterator[SumProof]:
    """Yield the means over windows and images whose input lies on an integer grid."""
    found, results = qdq.quantizers(model), _results(model)
    grids = data_movement.carried(found)
    for node in walk.nodes(model):
        if node.domain or node.op_type not in ("AveragePool", "GlobalAveragePool", "ReduceMean"):
            continue
        source = grids.get(id(node.inputs[0]))
        if source is None or source.qparams.axis is not None:
            continue
        low, high = (int(end) for end in accumulators.steps_of(source))
        yield _counted(_proof(node, source, source, results), _window(node), low, high)


def functions(model: ir.Model) -> Iterator[FunctionProof]:
    """Yield the calls of integer functions between quantizers."""
    for here in calls.places(model):
        held = {name: query.constant_array(value) for name, value in here.constants.items() if "shift" in name}
        shifts = {name: (int(a.min()), int(a.max())) for name, a in held.items() if a is not None and a.size}
        stages = here.function.stages()
        widest = max((stage.bits for stage in stages), default=0)
        yield FunctionProof(query.label(here.node), here.function.name, stages, widest, shifts)


def unproved(model: ir.Model, proved: set[int]) -> Iterator[Unproved]:
    """Yield layers about which nothing is said, but those whose node is among the identities `proved`."""
    grids = data_movement.carried(qdq.quantizers(model))
    for node in walk.nodes(model):
        if node.domain or node.op_type not in LAYERS or id(node) in proved:
            continue
        bare = [str(v.name) for v in node.inputs[:2] if v is not None and id(v) not in grids]
        reason = f"{' and '.join(bare)} lies on no integer grid" if bare else "the grid of its input has several scales"
        yield Unproved(query.label(node), reason)


def _proof(node: ir.Node, source: Quantizer, weight: Quantizer, results: Mapping[int, Quantizer]) -> SumProof:
    """A proof of what does not depend on the codes of a weight."""
    result = results.get(id(node))
    shifts, powers = (None, None) if result is None else _shifts(node, source, weight, result)
    return SumProof(
        query.label(node),
        node.op_type,
        source.tensor,
        weight.tensor,
        1,
        None,
        None,
        None,
        None,
        0,
        None,
        shifts,
        powers,
    )


def _of_two_inputs(layer: Layer, results: Mapping[int, Quantizer]) -> SumProof:
    """A product of two computed tensors: as many terms as the graph says, each as large as two grids allow."""
    (low, high), (least, most) = layer.steps, accumulators.steps_of(layer.weight)
    corners = [int(a) * int(b) for a in (low, high) for b in (least, most)]
    proof = _proof(layer.node, layer.input, layer.weight, results)
    return _counted(proof, _length(layer.node), min(corners), max(corners))


def _counted(proof: SumProof, count: int | None, low: int, high: int) -> SumProof:
    """`proof` for sums of `count` terms from `low` to `high`."""
    if count is None:
        return dataclasses.replace(proof, longest=INT32 // max(high, -low, 1))
    least, most = min(low, 0) * count, max(high, 0) * count
    return dataclasses.replace(proof, products=count, low=least, high=most, bits=bits(least, most))


def _length(node: ir.Node) -> int | None:
    """Terms of a sum of two computed tensors; None where the graph leaves their number open."""
    if node.op_type in CONVOLUTIONS:
        sizes = _sizes(node.inputs[1])
        if sizes is None:
            return None
        return _product(sizes[1:] if node.op_type == "Conv" else [sizes[0], *sizes[2:]])
    turned = [bool(query.attribute(node, name, 0)) for name in ("transA", "transB")]
    for value, place in zip(node.inputs[:2], (-2 if turned[0] else -1, -1 if turned[1] else -2), strict=True):
        sizes = _sizes(value)
        if sizes is not None and len(sizes) >= -place and sizes[place] is not None:
            return sizes[place]
    return None


def _window(node: ir.Node) -> int | None:
    """Elements of a mean; None where the graph leaves their number open."""
    if node.op_type == "AveragePool":
        return int(math.prod(query.attribute(node, "kernel_shape", [])))
    sizes = _sizes(node.inputs[0])
    if sizes is None or node.op_type == "GlobalAveragePool":
        return _product(None if sizes is None else sizes[2:])
    given = query.input_at(node, 1)
    axes = query.attribute(node, "axes", range(len(sizes))) if given is None else query.constant_array(given)
    return None if axes is None else _product([sizes[int(axis)] for axis in axes])


def _sizes(value: ir.Value | None) -> list[int | None] | None:
    """Sizes of a tensor, None for those that the graph leaves open; None where it does not state their number."""
    if value is None or value.shape is None:
        return None
    return [size if isinstance(size, int) else None for size in value.shape]


def _product(sizes: Sequence[int | None] | None) -> int | None:
    known = None if sizes is None else [size for size in sizes if size is not None]
    return math.prod(known) if known is not None and sizes is not None and len(known) == len(sizes) else None


def _results(model: ir.Model) -> dict[int, Quantizer]:
    """Quantizers of the results of nodes, a Relu or Clip in between or not, by the identity of the node."""
    found = {}
    for q in qdq.quantizers(model):
        node = q.input.producer()
        while node is not None:
            found[id(node)] = q
            first = node.inputs[0] if node.op_type in ("Relu", "Clip") and not node.domain else None
            node = query.producer(first)
    return found


def _shifts(
    node: ir.Node, source: Quantizer, weight: Quantizer, result: Quantizer
) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
    """Shifts of fixed-point kernels, and of those that only shift; see :class:`SumProof`."""
    if result.qparams.scale.size != 1 or source.qparams.scale.size != 1:
        return None, None
    scales: list[npt.NDArray[np.float64]] = [q.qparams.scale.astype(np.float64) for q in (source, weight, result)]
    pooled = node.op_type not in LAYERS
    ratio = np.atleast_1d(scales[0] * (1.0 if pooled else scales[1]) / scales[2].reshape(()))
    mantissa, exponent = np.frexp(ratio)
    exponent = exponent + (np.rint(mantissa * 2.0**MULTIPLIER_BITS) >= 2.0**MULTIPLIER_BITS)
    shifts = int(-exponent.max()), int(-exponent.min())
    whole = all(bool((np.frexp(s)[0] == 0.5).all()) for s in scales) and not pooled
    return shifts, (int(1 - exponent.max()), int(1 - exponent.min())) if whole else None
