"""Products that saturate: x86 processors without VNNI add pairs of u8 x s8 products in 16 bits.

``vpmaddubsw`` multiplies unsigned codes of the activation with signed ones of the weight and adds neighbours with
saturation, so that a result is wrong where ``a1 * w1 + a2 * w2`` leaves -32768..32767. Which weights are neighbours is
decided by the order in which a kernel walks the products of an output: MLAS orders a convolution by place in the window
and then by input channel, a matrix product by its rows (onnxruntime/core/mlas/lib, ``QgemmU8X8KernelAvx2``,
``ConvSymKernelAvx2``). oneDNN, which OpenVINO has, fills the input channels of each place up to a multiple of four
(``jit_avx2_x8s8s32x_conv_kernel``): with an odd number of them its neighbours are others, and both orders are kept from
saturating; so it does in a deconvolution (``jit_avx2_x8s8s32x_deconvolution``), which onnxruntime computes in float.
Depthwise kernels multiply into 32 bits.

Halving all weights (7 bits) avoids that in every case and costs every channel a bit. Only channels whose neighbours can
pass the limit need a larger scale, and only by as much as they pass it. How large the codes of the activations get is
taken from calibration data where there are some (:mod:`onnxqat.calibration.largest_codes`): most channels stay far below
the end of the grid.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat import numerics
from onnxqat.calibration import integer_layers, largest_codes
from onnxqat.calibration.channel_peaks import Peaks
from onnxqat.calibration.largest_codes import LargestCodes
from onnxqat.counts import counted
from onnxqat.graph import qdq, query, walk
from onnxqat.graph.quantizer import Quantizer
from onnxqat.types import Placement, QParams, QuantPlan, Remark, TensorSpec

SESSION_LAYERS = ("Conv", "Gemm", "MatMul")
"""Layers with integer kernels in onnxruntime."""

LAYERS = (*SESSION_LAYERS, "ConvTranspose")
"""Layers with integer kernels in any runtime for x86."""

CONVOLUTIONS = {"Conv": 0, "ConvTranspose": 1}
"""Axis of the weight along which the output channels of a group lie."""

LIMIT = 2**15 - 1
"""The largest sum of two products; the smallest is one less, which is not made use of."""

LARGEST_ACTIVATION = 255
"""The largest code that any activation can have; those of int8 are moved by 128 for these kernels."""

_ROUNDS, _STEP = 16, 1.002
"""Most raises of a scale, and the least factor of each: rounding can leave a pair up to half a code of each too
large after the first time, 0.8 % of the limit, and some multiples of a very small step would change no code."""

Array = npt.NDArray[np.float64]
Codes = npt.NDArray[np.float32]
"""Codes and sums of their products: whole numbers far below 2**24, which float32 holds exactly."""


def products(node: ir.Node, weight: np.ndarray) -> np.ndarray | None:
    """Reshape `weight` to a row per output channel, in the order in which kernels add products; None if depthwise.

    Args:
        node: one of :data:`LAYERS`.
        weight: its constant, or anything of the same shape.
    """
    if node.op_type in CONVOLUTIONS:
        filters = _filters(node, weight)
        if filters.ndim < 3 or _is_depthwise(node, filters):
            return None
        return np.moveaxis(filters, 1, -1).reshape(len(filters), -1)
    if weight.ndim < 2:
        return None
    rows = weight if _is_transposed(node) else np.moveaxis(weight, -2, -1)
    return np.asarray(rows).reshape(-1, rows.shape[-1])


def _filters(node: ir.Node, weight: np.ndarray) -> np.ndarray:
    """Return the `weight` of a convolution with axes (output channels, inputs of each, window).

    That of ConvTranspose has those of (inputs, outputs of each group, window), the inputs of its groups in turn.
    """
    groups = int(query.attribute(node, "group", 1))
    if node.op_type == "Conv" or weight.ndim < 3 or groups < 1 or len(weight) % groups:
        return weight
    inputs, outputs, window = len(weight) // groups, weight.shape[1], weight.shape[2:]
    apart = weight.reshape(groups, inputs, outputs, *window)
    return apart.swapaxes(1, 2).reshape(groups * outputs, inputs, *window)


def _is_depthwise(node: ir.Node, weight: np.ndarray) -> bool:
    """Check whether a convolution has one input and one output channel per group: ``QLinearConv`` has a kernel for it.

    The first layer of a network for grey images, and groups with several filters, have one input as well and go through
    the matrix product.
    """
    return weight.shape[1] == 1 and len(weight) == int(query.attribute(node, "group", 1))


def _is_transposed(node: ir.Node) -> bool:
    return node.op_type == "Gemm" and bool(query.attribute(node, "transB", 0))


def worst_pairs(node: ir.Node, codes: np.ndarray, largest: LargestCodes | None = None) -> Array | None:
    """The largest sum of two neighbouring products of one sign for each output channel; None where there are none.

    Neighbours are those of :func:`products`, and those that oneDNN has.

    Args:
        node: one of :data:`LAYERS`.
        codes: of its weight.
        largest: as of :func:`pair_bounds`.
    """
    bounds = pair_bounds(node, codes, largest)
    if bounds is None:
        return None
    worst = np.asarray(bounds.max(1, initial=0.0))
    inputs = _filters(node, codes).shape[1] if node.op_type in CONVOLUTIONS else 0
    if inputs % 2 == 0:
        return worst
    # Where oneDNN fills up the channels of a place, it has other neighbours.
    rows, (tops, _) = products(node, codes), _limits(node, codes, largest)
    filled = [_filled_up(each, inputs) if each.ndim else each for each in (np.asarray(rows), tops)]
    return np.asarray(np.maximum(worst, _bounds(filled[0], filled[1], None).max(1, initial=0.0)))


def pair_bounds(node: ir.Node, codes: np.ndarray, largest: LargestCodes | None = None) -> Array | None:
    """Largest magnitude of the sum of two neighbours of :func:`products`, (rows, pairs); None without products.

    Neighbours of different signs add up to less, as codes of activations are not negative.

    Args:
        node: one of :data:`LAYERS`.
        codes: of its weight.
        largest: of its input; if missing or of another size, :data:`LARGEST_ACTIVATION` for every code.
    """
    rows = products(node, codes)
    if rows is None:
        return None
    tops, sums = _limits(node, codes, largest)
    return _bounds(rows, tops, sums)


def _bounds(rows: np.ndarray, tops: np.ndarray, sums: np.ndarray | None) -> Array:
    """Return the largest magnitude of the sum of each two neighbours in `rows`, with codes up to `tops` and `sums`."""
    first, second = _in_pairs(rows)
    limits = _in_pairs(tops)
    above = _largest_sum(np.maximum(first, 0), np.maximum(second, 0), limits, sums)
    below = _largest_sum(np.maximum(-first, 0), np.maximum(-second, 0), limits, sums)
    return np.maximum(above, below).astype(np.float64)


def _filled_up(rows: np.ndarray, inputs: int) -> np.ndarray:
    """Return `rows` with one more channel of zeros at each place, behind the `inputs` channels there."""
    places = rows.reshape(len(rows), -1, inputs)
    return np.pad(places, ((0, 0), (0, 0), (0, 1))).reshape(len(rows), -1)


def _in_pairs(rows: np.ndarray) -> tuple[Codes, Codes]:
    """The first and the second of each two neighbours; a last one without neighbour has 0, a single number itself."""
    if not rows.ndim:
        return rows.astype(np.float32), rows.astype(np.float32)
    first = rows[:, ::2].astype(np.float32)
    second = np.zeros_like(first)
    second[:, : rows.shape[1] // 2] = rows[:, 1::2]
    return first, second


def _largest_sum(first: Codes, second: Codes, tops: tuple[Codes, Codes], sums: np.ndarray | None) -> Codes:
    """The largest ``a1 * first + a2 * second`` with codes up to `tops` and, where known, ``a1 + a2`` up to `sums`.

    Args:
        first: (rows, pairs), at least 0.
        second: the same of the neighbours.
        tops: of both, broadcastable to their shape.
        sums: the same.
    """
    if sums is None:
        return np.asarray(first * tops[0] + second * tops[1])
    # The larger weight gets the larger code, and the other what the sum leaves.
    swapped = second > first
    own, other = np.where(swapped, tops[1], tops[0]), np.where(swapped, tops[0], tops[1])
    rest = np.clip(sums.astype(np.float32) - own, 0, other)
    return np.asarray(np.maximum(first, second) * own + np.minimum(first, second) * rest)


def _limits(node: ir.Node, codes: np.ndarray, largest: LargestCodes | None) -> tuple[np.ndarray, np.ndarray | None]:
    """The largest input code at each product of the weight `codes`, and the largest sum of each pair where it is known."""
    convolves = node.op_type in CONVOLUTIONS
    shape = (_filters(node, codes) if convolves else codes).shape
    filters, inputs = (shape[0], shape[1]) if convolves else (1, shape[-1 if _is_transposed(node) else -2])
    groups = int(query.attribute(node, "group", 1)) if convolves else 1
    if largest is None or largest.channels.size != inputs * groups or filters % groups:
        return np.asarray(LARGEST_ACTIVATION), None
    # The channels follow each other at each place of the window.
    places = math.prod(shape[2:]) if convolves else 1
    # With an odd number of channels, pairs reach from one place to the next.
    known = [largest.channels] if inputs % 2 else [largest.channels, largest.sums]
    tops, *sums = (
        np.tile(np.repeat(tops.reshape(groups, -1), filters // groups, axis=0), (1, places)) for tops in known
    )
    return tops, sums[0] if sums else None


def unsaturated(node: ir.Node, weight: np.ndarray, qparams: QParams, largest: LargestCodes | None = None) -> QParams:
    """`qparams` with scales raised where products of `weight` could saturate, by no more than it takes.

    Args:
        node: the layer that reads the weight.
        weight: float32, its constant.
        qparams: of the weight, int8.
        largest: as of :func:`worst_pairs`.
    """
    for _ in range(_ROUNDS):
        worst = worst_pairs(node, numerics.quantize(weight, qparams), largest)
        if worst is None or (worst <= LIMIT).all():
            return qparams
        qparams = _raised(qparams, worst, by_row=qparams.axis == _channel_axis(node, weight) and not qparams.block_size)
    return qparams


def _channel_axis(node: ir.Node, weight: np.ndarray) -> int:
    """Axis of `weight` along which the output channels of `node` lie."""
    if node.op_type in CONVOLUTIONS:
        return CONVOLUTIONS[node.op_type]
    return weight.ndim - (2 if _is_transposed(node) else 1)


def _raised(qparams: QParams, worst: Array, *, by_row: bool) -> QParams:
    """`qparams` with larger scales.

    Args:
        qparams: of the weight.
        worst: largest sum in each row of :func:`products`.
        by_row: each scale is that of a row, or of the same row of each matrix in a stack. Otherwise, as for a weight
            that another layer reads along the other axis, a row has values of every scale.
    """
    factor = np.where(worst > LIMIT, np.maximum(worst / LIMIT, _STEP), 1.0)
    factor = factor.reshape(-1, len(qparams.scale)).max(0) if by_row else factor.max()
    larger = np.where(factor > 1.0, np.nextafter(qparams.scale * factor, np.inf), qparams.scale).astype(np.float32)
    scale = numerics.shorten(larger, qparams.scale_bits).astype(np.float32)
    return dataclasses.replace(qparams, scale=scale)


def saturating(node: ir.Node, codes: np.ndarray, largest: LargestCodes | None = None) -> int:
    """Number of output channels of `node` in which products of the int8 `codes` of its weight can saturate."""
    worst = worst_pairs(node, codes, largest)
    return 0 if worst is None else int((worst > LIMIT).sum())


def channels(quantizer: Quantizer) -> int:
    """Largest number, over the layers that read a weight, of output channels in which its products can saturate.

    The largest input codes are those of the layer's note where it has one.
    """
    return max((count for _, count in _readers_of(quantizer, LAYERS)), default=0)


def _readers_of(quantizer: Quantizer, operators: Collection[str]) -> list[tuple[ir.Node, int]]:
    codes = codes_of(quantizer)
    if codes is None:
        return []
    readers = [pair for value in quantizer.outputs for pair in _read_as(value, codes) if pair[0].op_type in operators]
    return [(node, saturating(node, held, largest_codes.noted(node))) for node, held in readers]


def _read_as(value: ir.Value, codes: np.ndarray) -> Iterator[tuple[ir.Node, np.ndarray]]:
    """The layers that read `value`, behind Transposes too, which deployment folds, and the codes as each has them."""
    for node in value.consumers():
        if node.op_type in LAYERS and not node.domain:
            yield node, codes
        elif node.op_type == "Transpose" and not node.domain:
            axes = query.attribute(node, "perm", None) or range(codes.ndim)[::-1]
            if sorted(axes) == list(range(codes.ndim)):  # a file of a stranger may state others
                yield from _read_as(node.outputs[0], codes.transpose(axes))


def channels_on_codes(node: ir.Node) -> int:
    """Number of output channels of an integer operator in which products can saturate; 0 for other operators."""
    layer = integer_layers.of(node)
    return 0 if layer is None else saturating(layer.plain, layer.weight)


def layers(model: ir.Model) -> list[tuple[ir.Node, int]]:
    """The layers of `model` in which products can saturate in onnxruntime, with the number of output channels of each."""
    found = [pair for quantizer in qdq.quantizers(model) for pair in _readers_of(quantizer, SESSION_LAYERS)]
    found += [(node, channels_on_codes(node)) for node in walk.nodes(model)]
    return [(node, count) for node, count in found if count]


def codes_of(quantizer: Quantizer) -> np.ndarray | None:
    """The int8 codes of a constant weight; None for anything else, and where its parameters do not fit."""
    qparams, held = quantizer.qparams, query.constant_array(quantizer.input)
    if quantizer.role != "weight" or qparams.qtype.storage != "int8" or held is None:
        return None
    if qparams.axis is not None and (qparams.block_size or held.shape[qparams.axis] != qparams.scale.size):
        return None
    return held if quantizer.stored else numerics.quantize(held, qparams)


def keep_in_limits(
    plan: QuantPlan,
    placements: list[Placement],
    constants: Mapping[str, np.ndarray],
    model: ir.Model,
    peaks: Peaks,
) -> tuple[list[Placement], dict[str, LargestCodes], list[Remark]]:
    """Raise the scales of weights whose products could saturate.

    Layers whose input has 16 bits run in other kernels, which have no such limit.

    Args:
        plan: weights whose spec says that their kernels saturate.
        placements: with parameters.
        constants: values of the weights by name.
        model: the float model.
        peaks: largest inputs of the layers that were watched; others may have any code.

    Returns:
        The placements, the largest codes that inputs of layers were taken to have, and remarks.
    """
    wanted = {e.tensor for e in plan.edges if isinstance(e.decision, TensorSpec) and e.decision.saturates}
    readers = _readers(model, wanted, placements) if wanted else {}
    largest = largest_codes.of_layers([n for nodes in readers.values() for n in nodes], placements, peaks)
    kept, done = list(placements), _Raised()
    for index, placement in enumerate(placements):
        weight = constants.get(placement.tensor) if placement.tensor in readers else None
        if weight is None or placement.qparams.qtype.storage != "int8":
            continue
        values, qparams, strict = np.asarray(weight, np.float32), placement.qparams, placement.qparams
        for node in readers[placement.tensor]:
            qparams = unsaturated(node, values, qparams, largest.get(str(node.name)))
            strict = unsaturated(node, values, strict)
        kept[index] = dataclasses.replace(placement, qparams=qparams)
        done.add(placement.qparams, qparams, strict)
    return kept, largest, done.remarks()


@dataclasses.dataclass
class _Raised:
    """Counts of scales: all, those raised, those that any activation would ask for, and layers with a raised one."""

    all: int = 0
    raised: int = 0
    strict: int = 0
    layers: int = 0

    def add(self, before: QParams, after: QParams, strict: QParams) -> None:
        changed = int((after.scale > before.scale).sum())
        self.all, self.raised = self.all + before.scale.size, self.raised + changed
        self.strict, self.layers = self.strict + int((strict.scale > before.scale).sum()), self.layers + bool(changed)

    def remarks(self) -> list[Remark]:
        if not self.strict:
            return []
        text = (
            f"{self.raised} of {counted(self.all, 'weight scale')}, in {counted(self.layers, 'layer')}, were raised so that no product of 8-bit "
            "codes saturates on processors without VNNI"
        )
        if self.raised < self.strict:
            text += (
                f", as long as no input is beyond {largest_codes.MARGIN:g} times what its channel had in the calibration data; "
                f"--safe-range raises {self.strict}, for any data"
            )
        return [Remark(text, source="resolve")]


def _readers(model: ir.Model, weights: Collection[str], placements: Sequence[Placement]) -> dict[str, list[ir.Node]]:
    """The layers that read each of `weights`, by its name, but those whose input has 16 bits."""
    found: dict[str, list[ir.Node]] = {}
    for node in walk.nodes(model):
        weight = node.inputs[1] if node.op_type in LAYERS and not node.domain and len(node.inputs) > 1 else None
        if weight is None or weight.name not in weights:
            continue
        grid = largest_codes.input_grid(node, placements)
        # Without a pair of its own, the input has the codes that were moved there.
        if grid is None or largest_codes.is_byte(grid):
            found.setdefault(str(weight.name), []).append(node)
    return found
