"""Layers as matrix products: the columns of the input (im2col), and the filters in the same order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat.graph import query
from onnxqat.graph.layers import CONVOLUTIONS
from onnxqat.graph.windows import padding_of

LAYERS = ("Conv", "Gemm", "MatMul")
"""Layers with kernels on 8-bit codes; :func:`columns_of` knows ConvTranspose as well."""


POSITIONS = 1024
"""Places of the output of a sample that are looked at; neighbours say much the same."""

Array = npt.NDArray[Any]


def groups_of(node: ir.Node) -> int:
    """Groups of a convolution; 1 for other layers."""
    return int(query.attribute(node, "group", 1)) if node.op_type in CONVOLUTIONS else 1


def is_transposed(node: ir.Node) -> bool:
    """Check whether the weight of `node` is (D, M), inputs first: that of MatMul, and of Gemm without transB."""
    return node.op_type == "MatMul" or (node.op_type == "Gemm" and not query.attribute(node, "transB", 0))


def filters_of(weight: Array, node: ir.Node) -> Array:
    """The weight of `node` as (groups, M, D): M filters per group, D inputs each; each matrix of a stack is a group."""
    if node.op_type == "ConvTranspose":  # (C, M, ...)
        groups, (inputs, filters) = groups_of(node), weight.shape[:2]
        split = weight.reshape(groups, inputs // groups, filters, -1)
        return split.transpose(0, 2, 1, 3).reshape(groups, filters, -1)
    if is_transposed(node):
        return np.swapaxes(weight.reshape(-1, *weight.shape[-2:]), 1, 2)
    rows = weight.reshape(len(weight), -1)
    groups = groups_of(node)
    return rows.reshape(groups, len(rows) // groups, -1)


def weight_of(filters: Array, node: ir.Node, shape: tuple[int, ...]) -> Array:
    """The inverse of :func:`filters_of`, for a weight of `shape`."""
    if node.op_type == "ConvTranspose":
        groups, count, _ = filters.shape
        return filters.reshape(groups, count, shape[0] // groups, -1).transpose(0, 2, 1, 3).reshape(shape)
    rows = np.swapaxes(filters, 1, 2) if is_transposed(node) else filters
    return np.ascontiguousarray(rows).reshape(shape)


def columns_of(x: Array, node: ir.Node, shape: Sequence[int], places: int = POSITIONS) -> Array:
    """Return the input columns (im2col) that the filters of a layer multiply, at a sample of its output places.

    Args:
        x: the layer's first input, float32 (N, C, ...) of a convolution, (..., D) of a MatMul, of a Gemm (N, D), or
            (D, N) with transA.
        node: Conv, ConvTranspose, Gemm or MatMul.
        shape: of its weight; of a stack of matrices (..., D, M).
        places: largest number of places per sample.

    Returns:
        float32 (groups, N * places, D), D in the order of :func:`filters_of`.
    """
    if node.op_type not in CONVOLUTIONS:
        flipped = node.op_type == "Gemm" and query.attribute(node, "transA", 0)
        return _rows_of(x.T if flipped else x, shape[:-2], places)
    kernel, rank = shape[2:], len(shape) - 2
    groups = groups_of(node)
    strides = [int(s) for s in query.attribute(node, "strides", [1] * rank)]
    dilations = [int(d) for d in query.attribute(node, "dilations", [1] * rank)]
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    if node.op_type == "ConvTranspose":  # a convolution over inputs with zeros between them, with turned kernels
        padded, strides = _upsampled(x, node, spans, strides), [1] * rank
    else:
        padded = np.pad(x, [(0, 0), (0, 0), *padding_of(node, x.shape[2:], spans, strides)])
    sizes = [(size - span) // stride + 1 for size, span, stride in zip(padded.shape[2:], spans, strides, strict=True)]
    where = np.unravel_index(_evenly_spaced(int(np.prod(sizes)), places), sizes)
    offsets = np.indices(kernel).reshape(rank, -1)
    if node.op_type == "ConvTranspose":
        offsets = np.asarray(kernel)[:, None] - 1 - offsets
    flat: Any = 0
    for axis in range(rank):
        flat = flat * padded.shape[2 + axis] + where[axis][:, None] * strides[axis] + offsets[axis] * dilations[axis]
    samples, channels, count = *padded.shape[:2], len(flat)
    # Much faster than the same by windows of as many axes.
    taken = np.take(padded.reshape(samples, channels, -1), flat.reshape(-1), axis=2)
    taken = taken.reshape(samples, groups, channels // groups, count, -1).transpose(1, 0, 3, 2, 4)
    return np.ascontiguousarray(taken, np.float32).reshape(groups, samples * count, -1)


def _upsampled(x: Array, node: ir.Node, spans: Sequence[int], strides: Sequence[int]) -> Array:
    """`x` with ``stride - 1`` zeros between neighbours, padded so that windows of `spans` give the output of `node`."""
    sizes = x.shape[2:]
    apart = [(size - 1) * stride + 1 for size, stride in zip(sizes, strides, strict=True)]
    spread = np.zeros((*x.shape[:2], *apart), x.dtype)
    apart_by: Any = (..., *(slice(None, None, s) for s in strides))
    spread[apart_by] = x
    extra = [int(e) for e in query.attribute(node, "output_padding", [0] * len(sizes))]
    cut = _cropped(node, [a + s - 1 + e for a, s, e in zip(apart, spans, extra, strict=True)], sizes, strides)
    edges = [(span - 1 - c[0], span - 1 - c[1] + e) for span, c, e in zip(spans, cut, extra, strict=True)]
    kept = [slice(max(-low, 0), size - max(-high, 0)) for (low, high), size in zip(edges, apart, strict=True)]
    inside: Any = (..., *kept)
    return np.pad(spread[inside], [(0, 0), (0, 0), *((max(low, 0), max(high, 0)) for low, high in edges)])


def _cropped(
    node: ir.Node, whole: Sequence[int], sizes: Sequence[int], strides: Sequence[int]
) -> list[tuple[int, int]]:
    """The margin that a ConvTranspose takes off both ends of each axis of its `whole` result (ONNX, ConvTranspose 22)."""
    mode, wanted = query.attribute(node, "auto_pad", "NOTSET"), query.attribute(node, "output_shape", None)
    if wanted is None and mode not in ("SAME_UPPER", "SAME_LOWER"):
        return padding_of(node, sizes, [], strides)
    given = [s * stride for s, stride in zip(sizes, strides, strict=True)] if wanted is None else list(wanted)
    both = [max(w - int(g), 0) for w, g in zip(whole, given[-len(whole) :], strict=True)]
    return [(b // 2, b - b // 2) if mode == "SAME_UPPER" else (b - b // 2, b // 2) for b in both]


def _rows_of(x: Array, stack: Sequence[int], places: int) -> Array:
    """The rows of `x` (..., D) that the matrices of a `stack` multiply, all of them for a single matrix."""
    if int(np.prod(stack)) > 1:
        return _rows_of_stack(x, stack, places)
    rows = x.reshape(len(x) if x.ndim > 2 else 1, -1, x.shape[-1])
    # All rows of a matrix are samples of their own.
    taken = rows if x.ndim <= 2 else rows[:, _evenly_spaced(rows.shape[1], places)]
    return np.ascontiguousarray(taken.reshape(1, -1, x.shape[-1]), np.float32)


def _rows_of_stack(x: Array, stack: Sequence[int], places: int) -> Array:
    """The rows of each matrix of `stack`, by ONNX's broadcasting: (groups, rows, D)."""
    x = x.reshape(-1, x.shape[-1]) if x.ndim < 2 else x
    outer = np.broadcast_shapes(x.shape[:-2], tuple(stack))
    x = np.broadcast_to(x, (*outer, *x.shape[-2:]))
    behind = len(outer) - len(stack)
    own = [behind + i for i, size in enumerate(stack) if size > 1]
    shared = [i for i in range(len(outer)) if i not in own]
    sorted_axes = x.transpose(*own, *shared, len(outer), len(outer) + 1)
    rows = sorted_axes.reshape(int(np.prod(stack)), int(np.prod([outer[i] for i in shared])), *x.shape[-2:])
    taken = rows[:, :, _evenly_spaced(rows.shape[2], places)]
    return np.ascontiguousarray(taken.reshape(len(rows), -1, x.shape[-1]), np.float32)


def _evenly_spaced(total: int, wanted: int) -> npt.NDArray[np.int64]:
    """At most `wanted` of `total` numbers, in order, the same each time."""
    if total <= wanted:
        return np.arange(total)
    return np.sort(np.random.default_rng(0).choice(total, wanted, replace=False))
