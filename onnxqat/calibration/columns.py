"""Layers as matrix products: the columns of the input (im2col), and the filters in the same order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat.graph import query

LAYERS = ("Conv", "Gemm", "MatMul")

POSITIONS = 1024
"""Places of the output of a sample that are looked at; neighbours say much the same."""


def groups_of(node: ir.Node) -> int:
    """Groups of a convolution; 1 for other layers."""
    return int(query.attribute(node, "group", 1)) if node.op_type == "Conv" else 1


def is_transposed(node: ir.Node) -> bool:
    """Check whether the weight of `node` is (D, M), inputs first: that of MatMul, and of Gemm without transB."""
    return node.op_type == "MatMul" or (node.op_type == "Gemm" and not query.attribute(node, "transB", 0))


def filters_of(weight: npt.NDArray[Any], node: ir.Node) -> npt.NDArray[Any]:
    """The weight of `node` as (groups, M, D): M filters per group, D inputs each."""
    rows = weight.T if is_transposed(node) else weight.reshape(len(weight), -1)
    groups = groups_of(node)
    return rows.reshape(groups, len(rows) // groups, -1)


def weight_of(filters: npt.NDArray[Any], node: ir.Node, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """The inverse of :func:`filters_of`, for a weight of `shape`."""
    rows = filters.reshape(-1, filters.shape[-1])
    return np.ascontiguousarray(rows.T if is_transposed(node) else rows).reshape(shape)


def columns_of(x: npt.NDArray[Any], node: ir.Node, shape: Sequence[int], places: int = POSITIONS) -> npt.NDArray[Any]:
    """Return the input columns (im2col) that the filters of a layer multiply, at a sample of its output places.

    Args:
        x: the layer's first input, float32 (N, C, ...) of a Conv, (..., D) of a Gemm or MatMul.
        node: the layer.
        shape: of its weight.
        places: largest number of places per sample.

    Returns:
        float32 (groups, N * places, D), D in the order of :func:`filters_of`.
    """
    if node.op_type != "Conv":
        return _rows_of(x, places)
    kernel, rank = shape[2:], len(shape) - 2
    groups = groups_of(node)
    strides = [int(s) for s in query.attribute(node, "strides", [1] * rank)]
    dilations = [int(d) for d in query.attribute(node, "dilations", [1] * rank)]
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    padded = np.pad(x, [(0, 0), (0, 0), *_pads(node, x.shape[2:], spans, strides)])
    view: Any = np.lib.stride_tricks.sliding_window_view
    windows: Any = view(padded, spans, axis=tuple(range(2, 2 + rank)))
    windows = windows[(slice(None), slice(None), *(slice(None, None, s) for s in strides))]
    windows = windows[(..., *(slice(None, None, d) for d in dilations))]
    sizes = windows.shape[2 : 2 + rank]
    total = int(np.prod(sizes))
    where = np.unravel_index(_evenly_spaced(total, places), sizes)
    taken = windows[(slice(None), slice(None), *where)]  # (N, C, places, kernel)
    count = taken.shape[0] * taken.shape[2]
    columns = np.moveaxis(taken, 1, 2).reshape(count, groups, -1)
    return np.ascontiguousarray(columns.transpose(1, 0, 2), np.float32)


def _pads(node: ir.Node, sizes: Sequence[int], spans: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    mode = query.attribute(node, "auto_pad", "NOTSET")
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        pads = []
        for size, span, stride in zip(sizes, spans, strides, strict=True):
            both = max((-(-size // stride) - 1) * stride + span - size, 0)
            small, large = both // 2, both - both // 2
            pads.append((small, large) if mode == "SAME_UPPER" else (large, small))
        return pads
    rank = len(sizes)
    flat = [0] * (2 * rank) if mode == "VALID" else [int(p) for p in query.attribute(node, "pads", [0] * (2 * rank))]
    return list(zip(flat[:rank], flat[rank:], strict=True))


def _rows_of(x: npt.NDArray[Any], places: int) -> npt.NDArray[Any]:
    rows = x.reshape(len(x) if x.ndim > 2 else 1, -1, x.shape[-1])
    # All rows of a matrix are samples of their own.
    taken = rows if x.ndim <= 2 else rows[:, _evenly_spaced(rows.shape[1], places)]
    return np.ascontiguousarray(taken.reshape(1, -1, x.shape[-1]), np.float32)


def _evenly_spaced(total: int, wanted: int) -> npt.NDArray[np.int64]:
    """At most `wanted` of `total` numbers, in order, the same each time."""
    if total <= wanted:
        return np.arange(total)
    return np.sort(np.random.default_rng(0).choice(total, wanted, replace=False))
