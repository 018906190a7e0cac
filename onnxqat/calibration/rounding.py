"""Compensated rounding of weights on calibration data, which is GPTQ, and bias correction.

1. GPTQ (Frantar et al., ICLR 2023; :mod:`onnxqat.calibration.gptq`) is Optimal Brain Quantization (OBQ: Frantar and
   Alistarh, "Optimal Brain Compression", NeurIPS 2022) with one order of the columns for all rows.
2. It minimizes the same error as AdaRound (:mod:`onnxqat.training.methods.adaround`), that of the layer's output, in
   closed form in place of gradient descent; a code may move by more than one LSB from the nearest.
3. Bias correction (Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction", ICCV 2019)
   adds the mean error of each output channel, measured on data, to the bias. It belongs to GPTQ here, and works alone too.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat import numerics
from onnxqat.calibration import columns, few_inputs, gptq, output_scales, saturation
from onnxqat.calibration.gptq import Doubles, Solver
from onnxqat.calibration.largest_codes import ByNode, LargestCodes, input_grid
from onnxqat.calibration.moments import Moments, alone, in_turn, joined, split
from onnxqat.data.data import Data
from onnxqat.graph import batchnorm, build, notes, query
from onnxqat.passes import _batchnorm_parts
from onnxqat.types import Placement, QParams, Remark

MARGIN = 0.05
"""LSB that a weight keeps from where it would round to the next code: enough for float32 at 16 bits, and for a step
of training to pass. ResNet-20, W4A4, 100 steps from weights on their codes end at 93.9 % of held-out training images,
from these and from the float weights at 95.1 %."""

WEIGHTS = 2**22
"""Weights of a layer that are worked on at a time, 32 MiB for each of a dozen arrays: filters do not depend on each other."""


BIAS_CODES = 2**30
"""Magnitude of a bias in steps of the accumulator up to which the scale of its weight may become smaller; int32 has twice that."""

Grids = Mapping[str, QParams]
"""Parameters of weights by name."""

Insert = Callable[[ir.Model, list[Remark], Grids], None]
"""Inserts the quantizers into a model, with these parameters in place of those that calibration found."""


@dataclasses.dataclass(frozen=True)
class Wanted:
    """Choice between what is found on data, for all layers.

    Attributes:
        codes: of the weights; otherwise each keeps its nearest.
        biases: take the mean error of their output channels.
        scales: of weights of few bits too.
        kept: names of weights whose scales stay, since the user gave them.
        trained: the file is, where weights have 2 or 3 bits, and learns their scales.
    """

    codes: bool = True
    biases: bool = True
    scales: bool = False
    kept: frozenset[str] = frozenset()
    trained: bool = True


def compensate(
    model: ir.Model,
    placements: Iterable[Placement],
    data: Data,
    largest: ByNode | None = None,
    insert: Insert | None = None,
    wanted: Wanted = Wanted(),  # frozen
) -> tuple[tuple[Remark, ...], Grids]:
    """Move the weights of layers in `model`, in place, so that their codes have as little error at the output as possible.

    A nearest code minimizes the error of a weight. What counts is the error of the layer: where inputs correlate, the next
    weight can compensate the rounding error of one. So columns are rounded one after the other, and the error of each is
    spread over those that are left, by the inverse second moments of the inputs on their grid (Frantar et
    al., "GPTQ", ICLR 2023). The mean error of each output channel goes into the bias (Nagel et al., ICCV 2019), so with a
    bias it is the moments about the mean that count. Filters for which that does not help keep their nearest codes.

    With few bits, where `insert` is given, layers are rounded one behind the other, and each compensates the error that its
    inputs have from its quantizer and all layers in front (Li et al., "GPTAQ", ICML 2025): ResNet-20, W4A4, 84.4 -> 89.7 %.
    At 8 bits that overfits the calibration samples: 31.0 dB on them and 29.2 on others, where it is 29.8 without.

    The bias is that of the layer or, behind a MatMul, the constant that an Add brings. A BatchNormalization that is kept
    behind a convolution takes the mean error up in its mean. One that the graph will compute in front of the quantizers
    (:mod:`onnxqat.passes.compute_batchnorm`) follows: the weight in front of folding and beta become those that fold to
    what was found.

    Where scales are wanted too, weights of few bits get those with the least error (:mod:`onnxqat.calibration.output_scales`).

    Costs a pass over the data, more for layers of thousands of inputs; the model notes that it was done
    (``notes.ROUNDED_BITS``). Left as they are: weights or biases that other nodes read too, and computed ones.

    Args:
        model: prepared float model.
        placements: with the parameters of the weights.
        data: calibration data; without repetition nothing is done, and a remark says so.
        largest: codes for which the nearest codes of weights keep sums from saturating, and the chosen ones have to.
        insert: inserts the quantizers into a copy of `model`, for layers that are rounded one behind the other; None: all
            are, each behind the quantizer of its input alone.
        wanted: codes, biases, scales.

    Returns:
        What there is to say, and the parameters of weights that got others.
    """
    placed = list(placements)
    grids = {p.tensor: p.qparams for p in placed if p.group is None}
    nodes = [node for node in model.graph if _is_candidate(node, grids)]
    if not nodes:
        return (), {}
    done = "weights of {} layers were rounded" if wanted.codes else "biases of {} layers were corrected"
    if not data.repeatable:
        text = "weights were rounded to the nearest code: the calibration data can be read only once"
        return (Remark(text, (), "calibrate"),), {}
    chosen: dict[str, QParams] = {}
    inserted = None if insert is None else functools.partial(_insert, insert, chosen)
    narrow = min(p.qparams.qtype.bits for p in placed) < notes.NARROW
    ways = {"second": wanted.codes, "narrow": narrow}
    found = (
        alone(model, nodes, placed, data, **ways)
        if inserted is None
        else in_turn(model, nodes, placed, inserted, data, **ways)
    )
    changed = 0
    for stage, moments in found:
        for node, moment in zip(stage, moments, strict=True):
            layer = _Layer.of(node, grids, placed, wanted)
            codes = (largest or {}).get(str(node.name))
            grid = layer.round(moment, codes, shifts=insert is not None) if moment.count else None
            changed += grid is not None
            if grid is not None and grid is not layer.grid:
                chosen[str(node.inputs[1].name)] = grid  # type: ignore[union-attr]
    if not changed:
        return (), {}
    rounded_grids = [grids[str(node.inputs[1].name)] for node in nodes]  # type: ignore[union-attr]
    made_up_for = rounded_grids if insert is None else [p.qparams for p in placed]
    model.metadata_props[notes.ROUNDED_BITS] = str(min(grid.qtype.bits for grid in made_up_for))
    return (Remark(f"{done.format(changed)} on calibration data", (), "calibrate"),), chosen


def _insert(insert: Insert, grids: Grids, model: ir.Model, remarks: list[Remark]) -> None:
    insert(model, remarks, grids)


def _is_candidate(node: ir.Node, grids: dict[str, QParams]) -> bool:
    if node.op_type not in (*columns.LAYERS, "ConvTranspose") or node.domain:
        return False
    weight = node.inputs[1]
    if weight is None or str(weight.name) not in grids or not _is_private(weight):
        return False
    held = query.constant_tensor(weight)
    # Steps of small floats differ.
    return held is not None and len(held.shape) > 1 and not grids[str(weight.name)].qtype.is_float


def _is_private(value: ir.Value | None) -> bool:
    """Check whether `value` is a float32 constant that a single node reads."""
    if value is None or value.producer() is not None or query.reads(value) != 1:
        return False
    constant = query.constant_tensor(value)
    return constant is not None and constant.dtype == ir.DataType.FLOAT


@dataclasses.dataclass(frozen=True, eq=False)
class _Layer:
    """A layer, and the constant behind it that takes its mean error.

    Attributes:
        node: the layer.
        grid: of its weight.
        values: its weight, float32.
        rows: the same as filters, float32 (groups, M, D).
        wanted: codes, biases, scales.
        bias: float32 constant of M values for each group; None where there is none that may change.
        mean: of the BatchNormalization that is kept behind, in the place of a bias.
    """

    node: ir.Node
    grid: QParams
    values: npt.NDArray[np.float32]
    rows: npt.NDArray[np.float32]
    wanted: Wanted
    bias: ir.Value | None
    mean: ir.Value | None

    @classmethod
    def of(cls, node: ir.Node, grids: dict[str, QParams], placed: list[Placement], wanted: Wanted) -> _Layer:
        """Read the layer `node`; `grids` are those of all constants that have one, `placed` all quantizers."""
        weight = node.inputs[1]
        assert weight is not None
        values = query.constant_array(weight)
        assert values is not None
        rows = columns.filters_of(values, node)
        bias = _bias_of(node, rows.shape[0] * rows.shape[1], grids) if wanted.biases else None
        mean = _mean_behind(node) if wanted.biases and bias is None else None
        grid = grids[str(weight.name)]
        if wanted.scales and (str(weight.name) in wanted.kept or not _may_shrink(node, grid, placed)):
            wanted = dataclasses.replace(wanted, scales=False)
        return cls(node, grid, values, rows, wanted, bias, mean)

    def round(self, moments: Moments, largest: LargestCodes | None, *, shifts: bool) -> QParams | None:
        """Round the weight and correct the bias, which also makes up for how the mean input `shifts`.

        Returns:
            The parameters that it is rounded by; None where there was nothing to change.
        """
        if not self.wanted.codes and self.bias is None and self.mean is None:
            return None
        parts = (
            np.broadcast_to(numerics.spread(p, self.grid, self.values.shape), self.values.shape)
            for p in self._qparams()
        )
        scale, zero = (columns.filters_of(part, self.node) for part in parts)
        low, high = (end - zero.astype(np.float32) for end in (self.grid.qtype.quant_min, self.grid.qtype.quant_max))
        codes = np.clip(np.rint(self.rows / scale), low, high)
        if self.wanted.codes:
            nearest = codes
            codes, chosen = self._chosen(scale, (low, high), moments)
            if chosen is None:
                codes = self._unsaturated(nearest, zero, codes, largest)
            else:  # codes of so few bits cannot saturate
                scale = chosen
        mean, taken = moments.first / moments.count, moments.taken / moments.count if shifts else None
        lost = np.concatenate([*_lost(self.rows, codes, scale, mean, taken)], axis=1).reshape(-1)
        new, grid = self.values, self.grid
        if self.wanted.codes:
            moved = _nearest_weights(self.rows, scale, codes, (low, high))
            new = columns.weight_of(moved, self.node, self.values.shape)
            self._replace(self.node.inputs[1], new)
            if chosen is not None:
                grid = output_scales.with_scales(grid, columns.weight_of(scale, self.node, self.values.shape))
        for value, change in ((self.bias, lost), (self.mean, -lost)):
            old = query.constant_array(value)
            if value is not None and old is not None:
                self._replace(value, old + change.reshape(old.shape))
        _batchnorm_parts.follow(self.node, new, np.zeros_like(lost) if self.bias is None else lost)
        return grid

    def _chosen(
        self, scale: npt.NDArray[Any], ends: tuple[npt.NDArray[Any], npt.NDArray[Any]], moments: Moments
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32] | None]:
        """Codes less their zero points, and other scales where wanted, with the least error at the output.

        Args:
            scale: of each weight, (groups, M, D).
            ends: smallest and largest code, the same shape, zero point subtracted.
            moments: of the inputs.

        Returns:
            Codes (groups, M, D), and the scales if they were searched.
        """
        centred = self.bias is not None or self.mean is not None
        given = [split(part, moments.parts) for part in (self.rows, scale, *ends)]
        given[1] = np.where(given[1] == 0, np.float32(1), given[1])  # what fills a part up has no scale
        codes, scales = np.empty(given[0].shape, np.float32), np.empty(given[0].shape, np.float32)
        inputs, size = self.rows.shape[-1], self.values.shape[self.grid.axis or 0]
        searched = self.wanted.scales and output_scales.is_searched(
            self.grid, inputs, size, moments.parts, trained=self.wanted.trained
        )
        if searched and inputs <= few_inputs.MOST and not self.grid.block_size:
            return self._of_few_inputs(moments, [part.astype(np.float64) for part in given], centred=centred)
        trusted = moments.trusted()
        for group in range(len(codes)):
            second, cross = moments.averages(group, centred=centred)
            own = [part[group].astype(np.float64) for part in given]
            damping, share = _shares(group, trusted, moments.held, own, centred=centred)
            solver = Solver(second, damping)
            recovery = None if cross is None or share is None else solver.recovery(cross, share=share)
            for filters in _slices(codes[group : group + 1]):
                weights, steps, low, high = (part[group, filters].astype(np.float64) for part in given)
                goal = weights if recovery is None else weights + weights @ recovery
                others = output_scales.tried(self.grid, solver, goal, steps, low, high) if searched else ()
                codes[group, filters], scales[group, filters] = _cheapest(solver, goal, [steps, *others], low, high)
        return joined(codes, moments.parts, inputs), scales if searched else None

    def _of_few_inputs(
        self, moments: Moments, given: Sequence[Doubles], *, centred: bool
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """The same for filters of few inputs, by a wider search: weights, scales, smallest and largest codes are `given`."""
        rows, scale, low, high = given
        found = [moments.averages(group, centred=centred) for group in range(len(rows))]
        second, taken = np.stack([part for part, _ in found]), [part for _, part in found if part is not None]
        goal = few_inputs.recovered(second, np.stack(taken), rows) if taken else rows
        codes, scales = few_inputs.chosen(second, goal, output_scales.fine(self.grid, scale), low, high)
        return codes.astype(np.float32), scales.astype(np.float32)

    def _qparams(self) -> tuple[Any, Any]:
        return self.grid.scale, self.grid.zero_point

    def _unsaturated(self, nearest: Any, zero: Any, other: Any, largest: LargestCodes | None) -> Any:
        """`other` without the filters whose products could saturate, where those of `nearest` cannot."""
        if self.node.op_type not in saturation.LAYERS or self.grid.block_size:
            return other  # computed in float
        both = (columns.weight_of(codes + zero, self.node, self.values.shape) for codes in (nearest, other))
        before, after = (saturation.worst_pairs(self.node, codes, largest) for codes in both)
        if before is None or after is None:
            return other
        worse = (before <= saturation.LIMIT) & (after > saturation.LIMIT)
        return np.where(worse.reshape(*other.shape[:2], 1), nearest, other)

    @staticmethod
    def _replace(value: ir.Value | None, new: npt.NDArray[Any]) -> None:
        assert value is not None
        value.const_value = build.tensor(new.astype(np.float32), ir.DataType.FLOAT, value.name)


def _bias_of(node: ir.Node, channels: int, grids: dict[str, QParams]) -> ir.Value | None:
    """The constant that is added to each of the output channels of `node`, where nothing else reads it."""
    value = query.input_at(node, 2)
    readers = tuple(node.outputs[0].uses())
    if node.op_type == "MatMul" and len(readers) == 1 and readers[0].node.op_type == "Add":
        value = readers[0].node.inputs[1 - readers[0].idx]
        last = query.static_shape(value)
        if last is None or last[-1:] != (channels,) or str(value and value.name) in grids:
            return None  # a table that quantizes the constant has its range by now
    if any(query.attribute(node, name, 1.0) != 1.0 for name in ("alpha", "beta")) or not _is_private(value):
        return None
    held = query.constant_array(value)
    return value if held is not None and held.size == channels else None


def _may_shrink(node: ir.Node, grid: QParams, placed: list[Placement]) -> bool:
    """Check whether the bias of `node` still fits an accumulator whose steps become smaller with the scale of the weight."""
    bias, fed = query.constant_array(query.input_at(node, 2)), input_grid(node, placed)
    if bias is None or fed is None or not bias.size:
        return True
    smallest = float(fed.scale.min()) * float(np.abs(grid.scale).min()) * min(output_scales.FACTORS)
    return float(np.abs(bias).max()) < BIAS_CODES * smallest


def _mean_behind(node: ir.Node) -> ir.Value | None:
    """The mean of the BatchNormalization that is kept behind `node`, where nothing else reads it."""
    kept = batchnorm.kept_behind(node)
    value = None if kept is None else kept.inputs[3]
    return value if _is_private(value) else None


def _slices(rows: npt.NDArray[Any]) -> Iterator[slice]:
    """The filters of `rows` (groups, M, D), so many at a time that they have :data:`WEIGHTS` weights."""
    groups, filters, inputs = rows.shape
    step = max(WEIGHTS // (groups * inputs), 1)
    return (slice(start, start + step) for start in range(0, filters, step))


def _shares(
    group: int, trusted: Moments | None, held: Moments | None, rounded: Sequence[Doubles], *, centred: bool
) -> tuple[float, float | None]:
    """Damping of the rounding of a group, and regularization of its recovery: what is best on places that are held out.

    Args:
        group: its number.
        trusted: moments of most of the places; None: there are no others.
        held: of the others.
        rounded: weights, scales, smallest and largest codes of the group, (M, D).
        centred: moments about the means count.
    """
    if trusted is None or held is None:
        return gptq.DAMPING, gptq.REGULARIZATION
    (some, cross), (others, theirs) = (part.averages(group, centred=centred) for part in (trusted, held))
    damping = gptq.best_damping(some, others, *rounded)
    if cross is None or theirs is None:
        return damping, None
    return damping, gptq.best_regularization((some, cross), (others, theirs), rounded[0])


def _cheapest(
    solver: Solver, rows: Doubles, scales: list[Doubles], low: Doubles, high: Doubles
) -> tuple[Doubles, Doubles]:
    """Codes and scales of each filter: the nearest, or those by `solver` on one of `scales`, with least error at the output."""
    best = np.clip(np.rint(rows / scales[0]), low, high)
    steps = scales[0].copy()
    least = solver.costs(rows - best * steps)
    for scale in scales:
        codes = solver.codes(rows, scale, low, high)
        cost = solver.costs(rows - codes * scale)
        better = cost < least
        best[better], steps[better], least[better] = codes[better], scale[better], cost[better]
    return best, steps


def _lost(
    rows: npt.NDArray[Any],
    codes: npt.NDArray[Any],
    scale: npt.NDArray[Any],
    mean: Doubles,
    taken: Doubles | None,
) -> Iterator[Doubles]:
    """The mean error of each output channel, (groups, some of M), by the `mean` input and what was `taken` from it."""
    for filters in _slices(rows):
        weights, steps, kept = (part[:, filters].astype(np.float64) for part in (rows, scale, codes))
        lost = np.einsum("gmd,gd->gm", weights - kept * steps, mean)
        yield lost if taken is None else lost + np.einsum("gmd,gd->gm", weights, taken)


def _nearest_weights(
    rows: npt.NDArray[Any],
    scale: npt.NDArray[Any],
    codes: npt.NDArray[Any],
    ends: tuple[npt.NDArray[Any], npt.NDArray[Any]],
) -> npt.NDArray[np.float32]:
    """The weights that round to `codes` and are as near to `rows` as that allows, :data:`MARGIN` from the next code.

    Training and reconstruction start from them: what is far from the middle between two codes stays there.
    """
    result = np.empty(rows.shape, np.float32)
    for filters in _slices(rows):
        weights, steps, kept, low, high = (part[:, filters].astype(np.float64) for part in (rows, scale, codes, *ends))
        below = np.where(kept > low, MARGIN - 0.5, -np.inf)  # what saturates does so from any distance
        above = np.where(kept < high, 0.5 - MARGIN, np.inf)
        result[:, filters] = (kept + np.clip(weights / steps - kept, below, above)) * steps
    return result
