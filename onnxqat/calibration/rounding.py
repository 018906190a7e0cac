"""Compensated rounding (GPTQ) of weights on calibration data, and bias correction.

1. GPTQ (Frantar et al., ICLR 2023) is Optimal Brain Quantization (OBQ: Frantar and Alistarh, "Optimal Brain
   Compression", NeurIPS 2022) with one order of the columns for all rows, here that of falling input power.
2. It minimizes the same error as AdaRound (:mod:`onnxqat.training.methods.adaround`), that of the layer's output, in
   closed form in place of gradient descent; a code may move by more than one LSB from the nearest.
3. Bias correction (Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction", ICCV 2019)
   adds the mean error of each output channel, measured on data, to the bias.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxqat.calibration import columns, saturation
from onnxqat.calibration.largest_codes import ByNode, LargestCodes
from onnxqat.calibration.moments import Doubles, Insert, Moments, alone, in_turn
from onnxqat.data.data import Data
from onnxqat.graph import batchnorm, build, notes, query
from onnxqat.passes import compute_batchnorm
from onnxqat.placement.tensor_specs import output_axis
from onnxqat.types import Placement, QParams, Remark

DAMPING = 1e-3
"""Share of the mean input power that is added to each input's own, so that the moments can be inverted."""

REGULARIZATION = 1e-2
"""The same where weights follow what rounding took from the inputs. ResNet-20 at 4 bits is as good with a tenth of it, so
that the steadier solution costs nothing."""

MARGIN = 0.05
"""LSB that a weight keeps from where it would round to the next code: enough for float32 at 16 bits, and for a step
of training to pass. ResNet-20, W4A4, 100 steps from weights on their codes end at 93.9 % of held-out training images,
from these and from the float weights at 95.1 %."""


def compensate(
    model: ir.Model,
    placements: Iterable[Placement],
    data: Data,
    largest: ByNode | None = None,
    insert: Insert | None = None,
) -> tuple[Remark, ...]:
    """Move the weights of layers in `model`, in place, so that their codes have as little error at the output as possible.

    A nearest code minimizes the error of a weight. What counts is the error of the layer: inputs that go together let
    the rounding error of one weight be made up for by the next. So columns are rounded one after the other, and what
    each loses is spread over those that are left, by the inverse second moments of the inputs on their grid (Frantar et
    al., "GPTQ", ICLR 2023). The mean error of each output channel goes into the bias (Nagel et al., ICCV 2019), so with a
    bias it is the moments about the mean that count. Filters for which that does not help keep their nearest codes.

    With few bits, where `insert` is given, layers take their turn, and each makes up for what quantization took from its
    inputs, in its quantizer and in all layers in front (Li et al., "GPTAQ", ICML 2025): ResNet-20, W4A4, 84.4 -> 89.7 %. At
    8 bits that learns the calibration samples by heart, 31.0 dB on them and 29.2 on others, for 29.8 without.

    A BatchNormalization that is kept behind a Conv takes the mean error up in its mean. One that the graph will compute
    in front of the quantizers (:mod:`onnxqat.passes.compute_batchnorm`) follows: the weight in front of folding and beta
    become those that fold to what was found.

    Costs a pass over the data; the model notes that it was done (``notes.ROUNDED_BITS``). Left as they are: weights or
    biases that other nodes read too, computed biases, stacks of matrices.

    Args:
        model: prepared float model.
        placements: with the parameters of the weights.
        data: calibration data; without repetition nothing is done, and a remark says so.
        largest: codes for which the nearest codes of weights keep sums from saturating, and the chosen ones have to.
        insert: inserts the quantizers into a copy of `model`, for layers that are rounded one behind the other; None: all
            are, each behind the quantizer of its input alone.
    """
    placed = list(placements)
    grids = {p.tensor: p.qparams for p in placed if p.group is None}
    nodes = [node for node in model.graph if _is_candidate(node, grids)]
    if not nodes:
        return ()
    if not data.repeatable:
        text = "weights were rounded to the nearest code: the calibration data can be read only once"
        return (Remark(text, (), "calibrate"),)
    found = [(nodes, alone(model, nodes, placed, data))] if insert is None else in_turn(model, nodes, insert, data)
    for stage, moments in found:
        for node, moment in zip(stage, moments, strict=True):
            grid, codes = grids[str(node.inputs[1].name)], (largest or {}).get(str(node.name))  # type: ignore[union-attr]
            _round(node, grid, moment, codes, shifts=insert is not None)
    rounded_grids = [grids[str(node.inputs[1].name)] for node in nodes]  # type: ignore[union-attr]
    made_up_for = rounded_grids if insert is None else [p.qparams for p in placed]
    model.metadata_props[notes.ROUNDED_BITS] = str(min(grid.qtype.bits for grid in made_up_for))
    return (Remark(f"weights of {len(nodes)} layers were rounded on calibration data", (), "calibrate"),)


def _is_candidate(node: ir.Node, grids: dict[str, QParams]) -> bool:
    if node.op_type not in columns.LAYERS or node.domain or query.attribute(node, "transA", 0):
        return False
    weight, bias = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None
    private = [v is None or (v.producer() is None and query.reads(v) == 1) for v in (weight, bias)]
    if not all(private) or weight is None or str(weight.name) not in grids:
        return False
    constant, grid = query.constant_tensor(weight), grids[str(weight.name)]
    if (
        constant is None
        or constant.dtype != ir.DataType.FLOAT
        or (node.op_type == "MatMul" and len(constant.shape) != 2)
    ):
        return False
    axis = output_axis(node) % len(constant.shape)
    if grid.axis not in (None, axis) or grid.qtype.is_float or grid.block_size:
        return False  # steps of small floats differ, and blocks cut the columns
    held = None if bias is None else query.constant_tensor(bias)
    return bias is None or (held is not None and tuple(held.shape) == (constant.shape[axis],))


def _round(node: ir.Node, grid: QParams, moments: Moments, largest: LargestCodes | None, *, shifts: bool) -> None:
    """Round the weight of `node` and correct its bias, which also makes up for how the mean input `shifts`."""
    if not moments.count:
        return
    weight, bias = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None
    behind = _mean_behind(node) if bias is None else None
    values = query.constant_array(weight)
    assert weight is not None
    assert values is not None
    rows = columns.filters_of(values, node).astype(np.float64)
    groups, filters, _ = rows.shape
    shape = (groups * filters, 1)
    scale = np.broadcast_to(grid.scale.reshape(-1, 1), shape).reshape(groups, filters, 1).astype(np.float64)
    zero = np.broadcast_to(grid.zero_point.reshape(-1, 1), shape).reshape(groups, filters, 1)
    ends = grid.qtype.quant_min - zero, grid.qtype.quant_max - zero
    mean = moments.first / moments.count
    codes = np.clip(np.rint(rows / scale), *ends)
    averages = moments.averages(centred=bias is not None or behind is not None)
    if averages is not None:
        second, cross = averages
        wanted = rows if cross is None else rows + made_up(rows, second, cross)
        other = rounded(wanted, scale, ends, second)
        codes = _cheaper(wanted, scale, codes, _unsaturated(node, values.shape, codes, zero, other, largest), second)
    lost = np.einsum("gmd,gd->gm", rows - codes * scale, mean)
    if shifts:
        lost += np.einsum("gmd,gd->gm", rows, moments.taken / moments.count)
    lost = lost.reshape(-1)
    new = columns.weight_of(_nearest_weights(rows, scale, codes, ends), node, values.shape).astype(np.float32)
    weight.const_value = build.tensor(new, ir.DataType.FLOAT, weight.name)
    for value, change in ((bias, lost), (behind, -lost)):
        old = None if value is None else query.constant_array(value)
        if value is not None and old is not None:
            value.const_value = build.tensor((old + change).astype(np.float32), ir.DataType.FLOAT, value.name)
    if node.op_type == "Conv":
        compute_batchnorm.follow(node, new, lost)


def made_up(rows: Doubles, second: Doubles, cross: Doubles) -> Doubles:
    """Least-squares change of the weights that compensates, at the layer's output, for what the inputs lost.

    Args:
        rows: weights (groups, M, D).
        second: second moments of the inputs, (groups, D, D).
        cross: moments of what was taken and the inputs, (groups, D, D).
    """
    size = second.shape[1]
    power = np.maximum(np.einsum("gdd->gd", second).mean(axis=1), np.finfo(np.float64).tiny ** 0.5)
    damped = second + REGULARIZATION * power[:, None, None] * np.eye(size)
    return np.asarray(np.linalg.solve(damped, (rows @ cross).transpose(0, 2, 1)).transpose(0, 2, 1))


def _nearest_weights(rows: Doubles, scale: Doubles, codes: Doubles, ends: tuple[Any, Any]) -> Doubles:
    """The weights that round to `codes` and are as near to `rows` as that allows, :data:`MARGIN` from the next code.

    Training and reconstruction start from them: what is far from the middle between two codes stays there.
    """
    below = np.where(codes > ends[0], MARGIN - 0.5, -np.inf)  # what saturates does so from any distance
    above = np.where(codes < ends[1], 0.5 - MARGIN, np.inf)
    return (codes + np.clip(rows / scale - codes, below, above)) * scale


def _unsaturated(
    node: ir.Node,
    shape: tuple[int, ...],
    nearest: Doubles,
    zero: Any,
    other: Doubles,
    largest: LargestCodes | None,
) -> Doubles:
    """`other` without the filters whose products could saturate, where those of `nearest` cannot."""
    both = (columns.weight_of(codes + zero, node, shape) for codes in (nearest, other))
    before, after = (saturation.worst_pairs(node, codes, largest) for codes in both)
    if before is None or after is None:
        return other
    worse = (before <= saturation.LIMIT) & (after > saturation.LIMIT)
    return np.where(worse.reshape(*other.shape[:2], 1), nearest, other)


def _mean_behind(node: ir.Node) -> ir.Value | None:
    """The mean of the BatchNormalization that is kept behind `node`, where nothing else reads it."""
    kept = batchnorm.kept_behind(node)
    value = None if kept is None else kept.inputs[3]
    constant = query.constant_tensor(value)
    private = value is not None and value.producer() is None and query.reads(value) == 1
    return value if private and constant is not None and constant.dtype == ir.DataType.FLOAT else None


def rounded(rows: Doubles, scale: Doubles, ends: tuple[Any, Any], second: Doubles) -> Doubles:
    """Codes of `rows` by GPTQ (algorithm 1): the errors of each column are spread over the columns that follow.

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
    try:
        inverse = np.linalg.inv(sorted_second + damping[:, None, None] * np.eye(size))
        factor = np.linalg.cholesky((inverse + inverse.transpose(0, 2, 1)) / 2).transpose(0, 2, 1)
    except np.linalg.LinAlgError:  # inputs that are all the same: there is nothing that could be made up for
        return np.clip(np.rint(rows / scale), *ends)
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
    """Choose between two codings per filter: the one with the smaller mean squared error at the output."""
    costs = [np.einsum("gmd,gmd->gm", error @ second, error) for error in (rows - c * scale for c in (nearest, other))]
    return np.where((costs[1] < costs[0])[:, :, None], other, nearest)
