"""Operators that select, join or scatter elements."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from onnxqat.bridge.functional import scatter as _scatter
from onnxqat.bridge.functional import shape_math
from onnxqat.bridge.importing.builder import Lowered, NodeView
from onnxqat.bridge.importing.values import Number

FARTHEST = 2**31 - 1  # exporters write this, or the largest int64, for "to the end"


def slice_axes(x: torch.Tensor, starts: Any, ends: Any, axes: Any, steps: Any) -> torch.Tensor:
    """Slice with any steps; bounds are clamped as ONNX says."""
    axes = range(len(starts)) if axes is None else axes
    steps = [1] * len(axes) if steps is None else steps
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        size = x.shape[axis]
        if step > 0:
            index: list[Any] = [slice(None)] * (axis % x.dim()) + [slice(start, end, step)]
            x = x[tuple(index)]
            continue
        first = min(max(start + size if start < 0 else start, 0), size - 1)
        last = max(end + size if end < 0 else end, -1)
        x = x.index_select(axis, torch.arange(first, last, step, device=x.device) if first > last else _empty(x))
    return x


def _empty(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros(0, dtype=torch.int64, device=x.device)


def wrapped_index(indices: torch.Tensor, size: Any) -> torch.Tensor:
    """Indices from the end made positive."""
    return torch.where(indices < 0, indices + size, indices)


def gather_along(x: torch.Tensor, indices: torch.Tensor, axis: int) -> torch.Tensor:
    """Gather with an axis that is counted from the end."""
    index: list[Any] = [slice(None)] * (axis % x.dim()) + [indices.to(torch.int64)]
    return x[tuple(index)]


def gather_each(x: torch.Tensor, indices: torch.Tensor, axis: int) -> torch.Tensor:
    """GatherElements; the index tensor may be smaller than `x` on the other axes."""
    return torch.gather(x, axis, wrapped_index(indices.to(torch.int64), x.shape[axis]))


def gather_points(x: torch.Tensor, indices: torch.Tensor, batch_dims: int) -> torch.Tensor:
    """GatherND: the last axis of `indices` holds coordinates."""
    batch = x.shape[:batch_dims]
    coordinates = list(indices.to(torch.int64).unbind(-1))
    grids: list[torch.Tensor] = []
    for axis, size in enumerate(batch):
        shape = [1] * (indices.dim() - 1)
        shape[axis] = size
        grids.append(torch.arange(size, device=x.device).reshape(shape))
    return x[tuple(grids + coordinates)]


def top_k_of(x: torch.Tensor, k: int, axis: int, largest: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The k largest or smallest, sorted; among equals the lower index first."""
    values, indices = torch.sort(x, dim=axis, descending=largest, stable=True)
    return values.narrow(axis, 0, k), indices.narrow(axis, 0, k)


def triangle(x: torch.Tensor, diagonal: Any, upper: bool) -> torch.Tensor:
    """The upper or lower triangle, 0 elsewhere."""
    return torch.triu(x, diagonal) if upper else torch.tril(x, diagonal)


def compressed(x: torch.Tensor, condition: torch.Tensor, axis: int | None) -> torch.Tensor:
    """The slices along `axis` (elements of the flattened tensor without) where `condition` holds."""
    if axis is None:
        x, axis = x.flatten(), 0
    return x.index_select(axis, condition.nonzero().flatten())


def positions_of_nonzero(x: torch.Tensor) -> torch.Tensor:
    """Coordinates of what is not zero, one column an element."""
    return torch.nonzero(x).t()


def one_hot_of(indices: torch.Tensor, depth: int, values: torch.Tensor, axis: int) -> torch.Tensor:
    """`values[1]` at each index along a new axis, `values[0]` elsewhere and for indices out of range."""
    axis = axis % (indices.dim() + 1)
    shape = [1] * (indices.dim() + 1)
    shape[axis] = -1
    places = torch.arange(depth, device=indices.device).reshape(shape)
    index = indices.to(torch.int64).unsqueeze(axis)
    return torch.where(wrapped_index(index, depth) == places, values[1], values[0])


def reversed_sequences(x: torch.Tensor, lengths: torch.Tensor, batch_axis: int, time_axis: int) -> torch.Tensor:
    """The first `lengths[b]` steps of each sample in reverse order."""
    moved = x.movedim((batch_axis, time_axis), (0, 1))
    steps = torch.arange(moved.shape[1], device=x.device).unsqueeze(0)
    ends = lengths.to(torch.int64).unsqueeze(1)
    index = torch.where(steps < ends, ends - 1 - steps, steps)
    rows = torch.arange(moved.shape[0], device=x.device).unsqueeze(1)
    return moved[rows, index].movedim((0, 1), (batch_axis, time_axis))


def part_sizes(length: Any, parts: int) -> list[Any]:
    """Sizes of `parts` equal parts, the last one smaller where it does not come out even."""
    chunk = -(-length // parts)
    return [*[chunk] * (parts - 1), length - chunk * (parts - 1)]


def equal_parts(x: torch.Tensor, parts: int, axis: int) -> tuple[torch.Tensor, ...]:
    """`x` in equal parts."""
    return torch.split(x, part_sizes(x.shape[axis], parts), axis)


def gather(n: NodeView) -> Lowered:
    """Gather 1 to 13."""
    axis = n.axis(0)
    arrays, known = n.grids([0]), n.static(1)
    if arrays is not None and known is not None:
        return n.numbers(np.take(arrays[0], known.astype(np.int64), axis=axis))
    shaped = n.shaped(0)
    if shaped is not None and known is not None:
        sizes = np.frompyfunc(lambda i: n.builder.size(shaped, int(i)), 1, 1)(known)
        return n.numbers(np.asarray(sizes, dtype=object), ir.DataType.INT64)
    rank = n.rank(0)
    if axis < 0 and rank is not None:
        axis += rank
    if axis < 0:
        return n.call(gather_along, n.tensor(0), n.tensor(1), axis)
    if known is not None and known.ndim == 0:
        return n.call(torch.select, n.tensor(0), axis, int(known))
    indices = n.tensor(1)
    if n.dtype(1) is not ir.DataType.INT64:
        indices = n.call(torch.Tensor.to, indices, torch.int64)
    index: Any = tuple([slice(None)] * axis + [indices]) if axis else indices
    return n.call(operator.getitem, n.tensor(0), index)


def gather_elements(n: NodeView) -> Lowered:
    """GatherElements 11 and 13."""
    return n.call(gather_each, n.tensor(0), n.tensor(1), n.axis(0))


def gather_nd(n: NodeView) -> Lowered:
    """GatherND 11 to 13."""
    return n.call(gather_points, n.tensor(0), n.tensor(1), int(n.attr("batch_dims", 0)))


def slice_(n: NodeView) -> Lowered:
    """Slice 1 to 13."""
    starts: Any
    ends: Any
    axes: Any
    steps: Any
    if n.opset < 10:
        starts, ends = n.attr("starts"), n.attr("ends")
        axes, steps = n.attr("axes") or list(range(len(starts))), [1] * len(starts)
    else:
        starts, ends = n.ints(1), n.ints(2)
        axes = n.ints(3) if n.has(3) else None
        steps = n.ints(4) if n.has(4) else None
        if axes is None and isinstance(starts, list):
            axes = list(range(len(starts)))
        if steps is None and isinstance(axes, list):
            steps = [1] * len(axes)
        lists = [p for p in (starts, ends, axes, steps) if isinstance(p, list)]
        if len(lists) < 4 or any(not isinstance(e, int) for e in [*lists[2], *lists[3]]):
            return n.call(slice_axes, n.tensor(0), starts, ends, axes, steps)
    arrays = n.grids([0])
    if arrays is not None and all(isinstance(b, int) for b in [*starts, *ends]):
        index = [slice(None)] * arrays[0].ndim
        for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
            size = arrays[0].shape[axis]
            stop = None if step < 0 and end < -size else end
            index[axis] = slice(max(start, -size) if step < 0 else start, stop, step)
        return n.numbers(arrays[0][tuple(index)])
    return _emit_slice(n, starts, ends, axes, steps)


def _emit_slice(n: NodeView, starts: list[Number], ends: list[Number], axes: list[int], steps: list[int]) -> Lowered:
    rank = n.rank(0)
    if rank is None or min(steps, default=1) < 0:
        return n.call(slice_axes, n.tensor(0), starts, ends, axes, steps)
    index: list[Any] = [slice(None)] * rank
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        to_end = isinstance(end, int) and end >= FARTHEST
        from_start = isinstance(start, int) and start == 0
        index[axis] = slice(None if from_start else start, None if to_end else end, None if step == 1 else step)
    while index and index[-1] == slice(None):
        index.pop()
    if not index:
        return n.tensor(0)
    return n.call(operator.getitem, n.tensor(0), tuple(index))


def split(n: NodeView) -> Lowered:
    """Split 2 to 18: given sizes, equal parts, or ``num_outputs`` parts with a smaller last one."""
    axis, count = n.axis(0), len(n.node.outputs)
    sizes: Any = n.attr("split") if n.opset < 13 else None
    if n.opset >= 13 and n.has(1):
        sizes = n.ints(1)
    if sizes is None:
        parts = int(n.attr("num_outputs", count))
        rank = n.rank(0)
        length = n.size(0, axis) if rank is not None else None
        if not isinstance(length, int):
            parts_node = n.call(equal_parts, n.tensor(0), parts, axis)
            return tuple(n.item(parts_node, i) if n.wants(i) else None for i in range(count))
        sizes = part_sizes(length, parts)
    arrays = n.grids([0])
    if arrays is not None and isinstance(sizes, list) and all(isinstance(s, int) for s in sizes):
        bounds = np.cumsum(sizes)[:-1]
        return tuple(n.numbers(part) for part in np.split(arrays[0], bounds, axis=axis))
    parts_node = n.call(torch.split, n.tensor(0), sizes, axis)
    return tuple(n.item(parts_node, i) if n.wants(i) else None for i in range(count))


def concat(n: NodeView) -> Lowered:
    """Concat 1 to 13."""
    axis = int(n.attr("axis", 1))
    arrays = n.grids()
    if arrays is not None:
        return n.numbers(np.concatenate(arrays, axis=axis))
    tensors = [n.tensor(i) for i in range(n.count)]
    return tensors[0] if len(tensors) == 1 else n.call(torch.cat, tensors, axis)


def where(n: NodeView) -> Lowered:
    """Operator Where 9 and 16."""
    arrays = n.grids()
    if arrays is not None:
        return n.elementwise(shape_math.choose, arrays, n.dtype(1))
    return n.call(torch.where, n.tensor(0), n.tensor(1), n.tensor(2))


def scatter(n: NodeView) -> Lowered:
    """Scatter 9 and 11, the older name of ScatterElements."""
    return scatter_elements(n)


def scatter_elements(n: NodeView) -> Lowered:
    """ScatterElements 11 to 18, with its reductions."""
    axis, reduction = n.axis(0), n.attr("reduction", "none")
    return n.call(_scatter.scatter_each, n.tensor(0), n.tensor(1), n.tensor(2), axis, reduction)


def scatter_nd(n: NodeView) -> Lowered:
    """ScatterND 11 to 18, with its reductions."""
    return n.call(_scatter.scatter_points, n.tensor(0), n.tensor(1), n.tensor(2), n.attr("reduction", "none"))


def top_k(n: NodeView) -> Lowered:
    """TopK 1 to 24; always sorted, which ``sorted=0`` permits."""
    k: Any = int(n.attr("k")) if n.opset < 10 else n.scalar(1)
    axis, largest = n.axis(-1), bool(n.attr("largest", 1))
    both = n.call(top_k_of, n.tensor(0), k, axis, largest)
    return n.item(both, 0), n.item(both, 1)


def trilu(n: NodeView) -> Lowered:
    """Trilu 14."""
    diagonal: Any = n.scalar(1) if n.has(1) else 0
    return n.call(triangle, n.tensor(0), diagonal, bool(n.attr("upper", 1)))


def compress(n: NodeView) -> Lowered:
    """Compress 9 to 28."""
    axis = n.attr("axis")
    return n.call(compressed, n.tensor(0), n.tensor(1), None if axis is None else int(axis))


def non_zero(n: NodeView) -> Lowered:
    """NonZero 9 and 13."""
    return n.call(positions_of_nonzero, n.tensor(0))


def one_hot(n: NodeView) -> Lowered:
    """OneHot 9 to 28."""
    depth: Any = n.scalar(1)
    if isinstance(depth, float):
        depth = int(depth)
    return n.call(one_hot_of, n.tensor(0), depth, n.tensor(2), int(n.attr("axis", -1)))


def reverse_sequence(n: NodeView) -> Lowered:
    """ReverseSequence 10 and 28."""
    batch, time = int(n.attr("batch_axis", 1)), int(n.attr("time_axis", 0))
    return n.call(reversed_sequences, n.tensor(0), n.tensor(1), batch, time)
