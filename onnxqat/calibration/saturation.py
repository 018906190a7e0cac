"""Products that saturate: x86 processors without VNNI add pairs of u8 x s8 products in 16 bits.

``vpmaddubsw`` multiplies unsigned codes of the activation with signed ones of the weight and adds neighbours with
saturation, so that a result is wrong where ``a1 * w1 + a2 * w2`` leaves -32768..32767. Which weights are neighbours is
decided by the order in which a kernel walks the products of an output: MLAS orders a convolution by place in the window
and then by input channel, a matrix product by its rows (onnxruntime/core/mlas/lib, ``QgemmU8X8KernelAvx2``,
``ConvSymKernelAvx2``). Depthwise kernels multiply into 32 bits.

Halving all weights (7 bits) avoids that in every case and costs every channel a bit. Only channels whose neighbours can
pass the limit need a larger scale, and only by as much as they pass it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat import numerics
from onnxqat.graph import query, walk
from onnxqat.graph.qdq import Quantizer
from onnxqat.types import Placement, QParams, QuantPlan, Remark, TensorSpec

LAYERS = ("Conv", "Gemm", "MatMul")

LIMIT = 2**15 - 1
"""The largest sum of two products; the smallest is one less, which is not made use of."""

LARGEST_ACTIVATION = 255
"""Codes of int8 activations are moved by 128 for these kernels."""

_ROUNDS = 8
"""How often a scale is raised at most: rounding can leave a pair one code too large after the first time."""

Array = npt.NDArray[np.float64]


def products(node: ir.Node, weight: np.ndarray) -> np.ndarray | None:
    """`weight` as rows, one an output channel, in the order in which kernels add its products; None for depthwise ones.

    Args:
        node: Conv, Gemm or MatMul.
        weight: its constant, or anything of the same shape.
    """
    if node.op_type == "Conv":
        if weight.ndim < 3 or weight.shape[1] == 1:
            return None
        return np.moveaxis(weight, 1, -1).reshape(len(weight), -1)
    if weight.ndim < 2:
        return None
    transposed = node.op_type == "Gemm" and query.attribute(node, "transB", 0)
    return np.asarray(weight if transposed else np.moveaxis(weight, -2, -1)).reshape(
        -1, weight.shape[-1 if transposed else -2]
    )


def worst_pairs(rows: np.ndarray) -> Array:
    """The largest sum of two neighbouring codes of one sign in each row, shape (rows,).

    Neighbours of different signs add up to less, as codes of activations are not negative.
    """
    codes = rows.astype(np.float64)
    codes = np.pad(codes, ((0, 0), (0, codes.shape[1] % 2)))
    pairs = codes.reshape(len(codes), -1, 2)
    above, below = np.maximum(pairs, 0).sum(-1), np.maximum(-pairs, 0).sum(-1)
    return np.asarray(np.maximum(above, below).max(1, initial=0.0))


def unsaturated(node: ir.Node, weight: np.ndarray, qparams: QParams, largest: int = LARGEST_ACTIVATION) -> QParams:
    """`qparams` with scales raised where products of `weight` could saturate, by no more than it takes.

    Args:
        node: the layer that reads the weight.
        weight: float32, its constant.
        qparams: of the weight, int8.
        largest: largest unsigned code of the activation.
    """
    allowed = LIMIT / largest
    for _ in range(_ROUNDS):
        rows = products(node, numerics.quantize(weight, qparams))
        if rows is None:
            return qparams
        worst = worst_pairs(rows)
        if (worst <= allowed).all():
            return qparams
        qparams = _raised(qparams, worst, allowed)
    return qparams


def _raised(qparams: QParams, worst: Array, allowed: float) -> QParams:
    factor = np.maximum(worst / allowed, 1.0)
    if qparams.axis is None:
        factor = factor.max()
    elif factor.shape != qparams.scale.shape:  # rows of a stack of matrices
        factor = factor.reshape(-1, len(qparams.scale)).max(0)
    larger = np.where(factor > 1.0, np.nextafter(qparams.scale * factor, np.inf), qparams.scale).astype(np.float32)
    scale = numerics.shorten(larger, qparams.scale_bits).astype(np.float32)
    return dataclasses.replace(qparams, scale=scale)


def saturating(node: ir.Node, codes: np.ndarray, largest: int = LARGEST_ACTIVATION) -> int:
    """In how many output channels of `node` products of the int8 `codes` of its weight can saturate."""
    rows = products(node, codes)
    return 0 if rows is None else int((worst_pairs(rows) > LIMIT / largest).sum())


def channels(quantizer: Quantizer) -> int:
    """In how many output channels of the layers that read a weight products of its codes can saturate."""
    qparams, held = quantizer.qparams, query.constant_array(quantizer.input)
    if quantizer.role != "weight" or qparams.qtype.storage != "int8" or held is None:
        return 0
    if qparams.axis is not None and (qparams.block_size or held.shape[qparams.axis] != qparams.scale.size):
        return 0
    codes = held if quantizer.stored else numerics.quantize(held, qparams)
    readers = (node for value in quantizer.outputs for node in value.consumers())
    known = (node for node in readers if node.op_type in LAYERS and not node.domain)
    return max((saturating(node, codes) for node in known), default=0)


def keep_in_limits(
    plan: QuantPlan, placements: list[Placement], constants: Mapping[str, np.ndarray], model: ir.Model
) -> tuple[list[Placement], list[Remark]]:
    """`placements` with the scales of weights raised where their products could saturate, and what was done.

    Args:
        plan: weights whose spec says that their kernels saturate.
        placements: with parameters.
        constants: values of the weights by name.
        model: the float model.
    """
    wanted = {e.tensor for e in plan.edges if isinstance(e.decision, TensorSpec) and e.decision.saturates}
    if not wanted:
        return placements, []
    readers = _readers(model)
    kept, raised, channels, layers = list(placements), 0, 0, 0
    for index, placement in enumerate(placements):
        weight = constants.get(placement.tensor) if placement.tensor in wanted else None
        if weight is None or placement.qparams.qtype.storage != "int8":
            continue
        qparams = placement.qparams
        for node in readers.get(placement.tensor, ()):
            qparams = unsaturated(node, np.asarray(weight, np.float32), qparams)
        changed = int((qparams.scale > placement.qparams.scale).sum())
        kept[index] = dataclasses.replace(placement, qparams=qparams)
        raised, channels, layers = raised + changed, channels + qparams.scale.size, layers + bool(changed)
    if not raised:
        return placements, []
    text = (
        f"{raised} of {channels} weight scales, in {layers} layers, were raised so that no product of 8-bit codes saturates "
        "on processors without VNNI"
    )
    return kept, [Remark(text, source="resolve")]


def _readers(model: ir.Model) -> dict[str, list[ir.Node]]:
    """The layers that read each weight, by its name."""
    found: dict[str, list[ir.Node]] = {}
    for node in walk.nodes(model):
        weight = node.inputs[1] if node.op_type in LAYERS and not node.domain and len(node.inputs) > 1 else None
        if weight is not None:
            found.setdefault(str(weight.name), []).append(node)
    return found
