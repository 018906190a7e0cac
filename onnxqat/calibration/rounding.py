"""Round the weights of convolutions so that the errors cancel on calibration data, and correct the biases."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat import numerics
from onnxqat.calibration import foreign
from onnxqat.calibration.data import Data
from onnxqat.calibration.session import Session
from onnxqat.graph import batchnorm, build, query
from onnxqat.passes import compute_batchnorm
from onnxqat.types import Placement, QParams, Remark

Doubles = npt.NDArray[np.float64]

POSITIONS = 1024
"""Places of the output of a sample that are looked at; neighbours say much the same."""

LARGEST = 2048
"""Inputs of a filter up to which errors are weighed against each other; larger filters get their bias corrected only."""

DAMPING = 1e-3
"""Share of the mean input power that is added to each input's own, so that the moments can be inverted."""


@dataclasses.dataclass
class Moments:
    """First and second moments of what the filters of a group are multiplied with, summed over places.

    Attributes:
        first: float64 (groups, D) with D inputs of a filter.
        second: float64 (groups, D, D); None where D is over :data:`LARGEST`.
        count: number of places.
    """

    first: Doubles
    second: Doubles | None
    count: int = 0

    def add(self, columns: npt.NDArray[Any]) -> None:
        """Take in `columns`, float32 (groups, places, D)."""
        self.first += columns.sum(axis=1, dtype=np.float64)
        if self.second is not None:
            self.second += columns.transpose(0, 2, 1) @ columns
        self.count += columns.shape[1]


def compensate(model: ir.Model, placements: Iterable[Placement], data: Data) -> tuple[Remark, ...]:
    """Put the weights of Conv nodes on their grids in `model`, in place, with as little error at the output as possible.

    A nearest code minimizes the error of a weight. What counts is the error of the layer: inputs that go together let
    the rounding error of one weight be made up for by the next. So columns are rounded one after the other, and what
    each loses is spread over those that are left, by the inverse second moments of the inputs (Frantar et al., "GPTQ",
    ICLR 2023). The mean error of each output channel goes into the bias (Nagel et al., ICCV 2019), so with a bias it
    is the moments about the mean that count. Filters for which that does not help keep their nearest codes.

    A BatchNormalization that is kept behind a Conv takes the mean error up in its mean. One that the graph will compute
    in front of the quantizers (:mod:`onnxqat.passes.compute_batchnorm`) follows: the weight in front of folding and beta
    become those that fold to what was found.

    Costs a pass over the data. Left as they are: weights or biases that other nodes read too, computed biases.

    Args:
        model: prepared float model.
        placements: with the parameters of the weights.
        data: calibration data; without repetition nothing is done, and a remark says so.
    """
    grids = {p.tensor: p.qparams for p in placements if p.group is None}
    nodes = [node for node in model.graph if _is_candidate(node, grids)]
    if not nodes:
        return ()
    if not data.repeatable:
        text = "weights were rounded to the nearest code: the calibration data can be read only once"
        return (Remark(text, (), "calibrate"),)
    for node, moments in zip(nodes, _observe(model, nodes, data), strict=True):
        _round(node, grids[str(node.inputs[1].name)], moments)  # type: ignore[union-attr]
    return (Remark(f"weights of {len(nodes)} convolutions were rounded on calibration data", (), "calibrate"),)


def _is_candidate(node: ir.Node, grids: dict[str, QParams]) -> bool:
    if node.op_type != "Conv" or node.domain:
        return False
    weight, bias = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None
    private = [v is None or (v.producer() is None and query.reads(v) == 1) for v in (weight, bias)]
    if not all(private) or weight is None or str(weight.name) not in grids:
        return False
    constant, grid = query.constant_tensor(weight), grids[str(weight.name)]
    if constant is None or constant.dtype != ir.DataType.FLOAT or grid.axis not in (None, 0):
        return False
    if grid.qtype.is_float or grid.block_size:
        return False  # steps of small floats differ, and blocks cut the columns
    return bias is None or query.constant_tensor(bias) is not None


def _observe(model: ir.Model, nodes: Sequence[ir.Node], data: Data) -> list[Moments]:
    names = [str(node.inputs[0].name) for node in nodes]  # type: ignore[union-attr]
    fed = {info.name for info in data.inputs}
    session = Session(
        foreign.runnable_part(model), optimize=True, tensors=[n for n in dict.fromkeys(names) if n not in fed]
    )
    fetched = [n for n in dict.fromkeys(names) if n not in fed]
    moments = [_empty(node) for node in nodes]
    for feeds in data:
        values = {**feeds, **session.run(feeds, fetched)}
        for node, name, moment in zip(nodes, names, moments, strict=True):
            if name in values and values[name].size:
                moment.add(columns_of(values[name], node))
    return moments


def _empty(node: ir.Node) -> Moments:
    weight = query.constant_array(node.inputs[1])
    assert weight is not None
    groups, inputs = int(query.attribute(node, "group", 1)), int(np.prod(weight.shape[1:]))
    second = np.zeros((groups, inputs, inputs)) if inputs <= LARGEST else None
    return Moments(np.zeros((groups, inputs)), second)


def columns_of(x: npt.NDArray[Any], node: ir.Node) -> npt.NDArray[Any]:
    """What the filters of a Conv are multiplied with at some places of its output, as it does.

    Args:
        x: the Conv's input, float32 (N, C, ...).
        node: the Conv.

    Returns:
        float32 (groups, N * places, D), D in the order of a filter's weights; at most :data:`POSITIONS` places.
    """
    weight = query.constant_array(node.inputs[1])
    assert weight is not None
    kernel, rank = weight.shape[2:], weight.ndim - 2
    groups = int(query.attribute(node, "group", 1))
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
    chosen = np.arange(total)
    if total > POSITIONS:
        chosen = np.random.default_rng(0).choice(total, POSITIONS, replace=False)
    places = np.unravel_index(np.sort(chosen), sizes)
    taken = windows[(slice(None), slice(None), *places)]  # (N, C, places, kernel)
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


def _round(node: ir.Node, grid: QParams, moments: Moments) -> None:
    if not moments.count:
        return
    weight, bias = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None
    behind = _mean_behind(node) if bias is None else None
    values = query.constant_array(weight)
    assert weight is not None
    assert values is not None
    groups = len(moments.first)
    rows = values.reshape(groups, len(values) // groups, -1).astype(np.float64)
    scale = np.broadcast_to(grid.scale.reshape(-1, 1), (len(values), 1)).reshape(groups, -1, 1).astype(np.float64)
    zero = np.broadcast_to(grid.zero_point.reshape(-1, 1), (len(values), 1)).reshape(groups, -1, 1)
    ends = grid.qtype.quant_min - zero, grid.qtype.quant_max - zero
    mean = moments.first / moments.count
    codes = np.clip(np.rint(rows / scale), *ends)
    if moments.second is not None:
        second = moments.second / moments.count
        if bias is not None or behind is not None:
            second -= mean[:, :, None] * mean[:, None, :]
        codes = _cheaper(rows, scale, codes, rounded(rows, scale, ends, second), second)
    written = (codes + zero).reshape(values.shape).astype(np.int64)
    new = numerics.dequantize(written, grid)
    weight.const_value = build.tensor(new, ir.DataType.FLOAT, weight.name)
    lost = np.einsum("gmd,gd->gm", rows - new.reshape(rows.shape), mean).reshape(-1)
    for value, change in ((bias, lost), (behind, -lost)):
        old = None if value is None else query.constant_array(value)
        if value is not None and old is not None:
            value.const_value = build.tensor((old + change).astype(np.float32), ir.DataType.FLOAT, value.name)
    compute_batchnorm.follow(node, new, lost)


def _mean_behind(node: ir.Node) -> ir.Value | None:
    """The mean of the BatchNormalization that is kept behind `node`, where nothing else reads it."""
    kept = batchnorm.kept_behind(node)
    value = None if kept is None else kept.inputs[3]
    constant = query.constant_tensor(value)
    private = value is not None and value.producer() is None and query.reads(value) == 1
    return value if private and constant is not None and constant.dtype == ir.DataType.FLOAT else None


def rounded(rows: Doubles, scale: Doubles, ends: tuple[Any, Any], second: Doubles) -> Doubles:
    """Codes of `rows` with the errors of each column spread over the columns that follow.

    Args:
        rows: weights (groups, M, D).
        scale: (groups, M, 1).
        ends: smallest and largest code, zero point subtracted, broadcastable to (groups, M, 1).
        second: second moments of the inputs, (groups, D, D).

    Returns:
        float64 (groups, M, D), whole numbers.
    """
    power = np.einsum("gdd->gd", second)
    damping = np.maximum(DAMPING * power.mean(axis=1), np.finfo(np.float64).tiny ** 0.5)
    # Inputs of high power first, while there are others left to make up for them.
    order = np.argsort(-power, axis=1, kind="stable")
    size = rows.shape[2]
    sorted_second = np.take_along_axis(np.take_along_axis(second, order[:, :, None], 1), order[:, None, :], 2)
    inverse = np.linalg.inv(sorted_second + damping[:, None, None] * np.eye(size))
    factor = np.linalg.cholesky((inverse + inverse.transpose(0, 2, 1)) / 2).transpose(0, 2, 1)
    left = np.take_along_axis(rows, order[:, None, :], 2)
    codes = np.empty_like(left)
    for column in range(size):
        codes[:, :, column] = np.clip(np.rint(left[:, :, column, None] / scale), *ends)[:, :, 0]
        lost = (left[:, :, column] - codes[:, :, column] * scale[:, :, 0]) / factor[:, None, column, column]
        left[:, :, column + 1 :] -= lost[:, :, None] * factor[:, None, column, column + 1 :]
    result = np.empty_like(codes)
    np.put_along_axis(result, np.broadcast_to(order[:, None, :], codes.shape), codes, 2)
    return result


def _cheaper(rows: Doubles, scale: Doubles, nearest: Doubles, other: Doubles, second: Doubles) -> Doubles:
    """Of two codings, filter by filter, the one with the smaller mean squared error at the output."""
    costs = [np.einsum("gmd,gmd->gm", error @ second, error) for error in (rows - c * scale for c in (nearest, other))]
    return np.where((costs[1] < costs[0])[:, :, None], other, nearest)
