"""First and second moments of the inputs of layers, as columns that their filters multiply, on calibration data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat import numerics
from onnxqat.calibration import columns
from onnxqat.calibration.largest_codes import input_grid
from onnxqat.calibration.stage_runs import StageRuns
from onnxqat.data.data import Data
from onnxqat.graph import notes, query
from onnxqat.runtime import vendor_operators
from onnxqat.runtime.session import Session
from onnxqat.types import Placement, QParams, Remark

Doubles = npt.NDArray[np.float64]

Insert = Callable[[ir.Model, list[Remark]], None]

COLUMNS = 8
"""Places (positions of the filter) that are sampled for each input of a filter."""

COLUMNS_OF_NARROW = 64
"""The same for narrow weights, whose error is large enough for it to show: a MobileNetV2 at 4 bits, 64 images, layers of 192
to 576 inputs, has 0.2 to 0.6 dB less error on other images than with 8."""

PLACES_OF_NARROW = 256
"""Places of a sample that are sampled for narrow weights. Neighbouring places are much alike, but 100 samples are few: a
MobileNetV2 at 4 bits, rounded layer by layer, has 11.2 and 10.8 dB on 300 other images with 16, 12.4 and 11.0 with 256."""

PRODUCTS = 2**35
"""Products of a layer beyond which narrow weights get no more places than others: they take a second or two."""

FEWEST = 16
"""Places of a sample that are sampled however many samples there are."""

LARGEST = 4096
"""Inputs up to which a filter is compensated as a whole. Larger filters are split, in the order of their weights, and each
part compensates its own errors: a matrix of 4096 x 4096 moments takes 64 MiB, and twice that while it is inverted."""

DOUBLE = 2048
"""Inputs up to which moments are kept in float64; beyond that in float32, whose rounding their damping exceeds by far."""

ELEMENTS = 2**26
"""Moments that are held at a time, 256 MiB in float32. Layers that together have more read the data one group after the
other; the filters of a layer that alone has more, such as a long stack of matrices, are split."""

SAMPLES = 128
"""Samples that are run; beyond that, moments gain from more places and no longer from more samples."""

MOST = 512
"""Samples that are run layer by layer, where a layer compensates the errors of all layers in front: with fewer it overfits.
ResNet-20, W4A4: 9.6 dB with 128, 11.5 with 512."""

RUNS = 10240
"""Largest product of samples and stages when running layer by layer, so that a deep network takes a minute or two; at least
16 samples are run."""


HELD = 4
"""One place in so many, the last ones, which are of other samples, is held out: on it the moments of the others are tested."""

MANY = 64
"""Inputs of a filter from which on places are held out: filters of fewer cannot overfit the samples."""


@dataclasses.dataclass
class Moments:
    """Moments of the inputs that the filters of a group multiply, summed over places.

    Attributes:
        first: of the inputs as they are in the quantized model, float64 (groups, D) with D inputs of a filter.
        taken: of the part that quantization removed from them, the same shape.
        second: of the inputs, (groups * parts, L, L) with filters in parts of L inputs, float64, or float32 where L is
            over :data:`DOUBLE`; None where they are not wanted.
        cross: of the removed part (rows) and the inputs (columns), like `second`; None if nothing was removed.
        parts: of each filter.
        count: number of places.
        held: of those places among them that are held out; None where none are.
    """

    first: Doubles
    taken: Doubles
    second: npt.NDArray[Any] | None
    cross: npt.NDArray[Any] | None = None
    parts: int = 1
    count: int = 0
    held: Moments | None = None

    @staticmethod
    def of(node: ir.Node, *, second: bool = True, narrow: bool = False) -> Moments:
        """Moments of zero places for the filters of `node`; without `second` only means; `narrow` holds some places out."""
        groups, _, inputs = columns.filters_of(_weight(node), node).shape
        parts, length = parts_of(groups, inputs)
        dtype = np.float64 if length <= DOUBLE else np.float32
        square = np.zeros((groups * parts, length, length), dtype) if second else None
        held = Moments.of(node) if second and narrow and length >= MANY else None
        return Moments(np.zeros((groups, inputs)), np.zeros((groups, inputs)), square, parts=parts, held=held)

    def add(self, inputs: npt.NDArray[Any], taken: npt.NDArray[Any] | None = None) -> None:
        """Add `inputs`, float32 (groups, places, D), and the part `taken` from each by quantization, if any."""
        if self.held is not None:
            last = slice(-(inputs.shape[1] // HELD) or inputs.shape[1], None)
            self.held.add(inputs[:, last], None if taken is None else taken[:, last])
        self.first += _summed(inputs)
        self.count += inputs.shape[1]
        if taken is not None:
            self.taken += _summed(taken)
        if self.second is None:
            return
        inputs = split(inputs, self.parts)
        self.second += inputs.transpose(0, 2, 1) @ inputs
        if taken is not None:
            self.cross = np.zeros_like(self.second) if self.cross is None else self.cross
            self.cross += split(taken, self.parts).transpose(0, 2, 1) @ inputs

    def trusted(self) -> Moments | None:
        """Those of the places that are not held out; None where no places are held out, or all are."""
        if self.held is None or not 0 < self.held.count < self.count:
            return None
        assert self.second is not None
        assert self.held.second is not None
        rest = dataclasses.replace(self, first=self.first - self.held.first, taken=self.taken - self.held.taken)
        rest.second, rest.count, rest.held = self.second - self.held.second, self.count - self.held.count, None
        if self.cross is not None and self.held.cross is not None:
            rest.cross = self.cross - self.held.cross
        return rest

    def averages(self, group: int, *, centred: bool) -> tuple[Doubles, Doubles | None]:
        """Mean `second` and `cross` of a part, float64 (L, L), about the means where `centred`."""
        assert self.second is not None
        second = self.second[group].astype(np.float64) / self.count
        cross = None if self.cross is None else self.cross[group].astype(np.float64) / self.count
        if centred:
            mean, taken = (split(m[:, None], self.parts)[group, 0] / self.count for m in (self.first, self.taken))
            second -= np.outer(mean, mean)
            if cross is not None:
                cross -= np.outer(taken, mean)
        return second, cross


def _summed(rows: npt.NDArray[Any]) -> Doubles:
    """Sum over the second axis; einsum takes half as long as ``sum`` where there are many groups."""
    return np.asarray(np.einsum("gpd->gd", rows, dtype=np.float64))


def parts_of(groups: int, inputs: int) -> tuple[int, int]:
    """Number of parts that filters with so many inputs are split into, and inputs of each."""
    longest = max(min(LARGEST, ELEMENTS // (groups * inputs)), 1)
    parts = -(-inputs // longest)
    return parts, -(-inputs // parts)


def split(rows: npt.NDArray[Any], parts: int) -> npt.NDArray[Any]:
    """`rows` (groups, N, D) as (groups * parts, N, L), filled up with zeros."""
    groups, count, inputs = rows.shape
    if parts == 1:
        return rows
    length = -(-inputs // parts)
    filled = np.pad(rows, ((0, 0), (0, 0), (0, parts * length - inputs)))
    return filled.reshape(groups, count, parts, length).transpose(0, 2, 1, 3).reshape(groups * parts, count, length)


def joined(rows: npt.NDArray[Any], parts: int, inputs: int) -> npt.NDArray[Any]:
    """The inverse of :func:`split`, for rows of so many `inputs`."""
    total, count, length = rows.shape
    apart = rows.reshape(total // parts, parts, count, length).transpose(0, 2, 1, 3)
    return apart.reshape(total // parts, count, parts * length)[:, :, :inputs]


def alone(
    model: ir.Model,
    nodes: Sequence[ir.Node],
    placed: Sequence[Placement],
    data: Data,
    *,
    second: bool = True,
    narrow: bool = False,
) -> Iterator[tuple[list[ir.Node], list[Moments]]]:
    """Moments of each layer behind the quantizer of its input alone; layers that fit into memory share a pass over the data.

    What narrow grids round off counts as taken; at 8 bits it is next to nothing. What a range clips does not: the range
    was chosen because the network can do without it, and a bias that compensated for it would move all other values
    (MobileNetV2 ends at 14.5 dB with that, and at 21.6 without).

    Args:
        model: prepared float model, of which only weights and biases of `nodes` change meanwhile.
        nodes: layers of it.
        placed: quantizers with their parameters.
        data: calibration data.
        second: False for the means alone.
        narrow: weights are, so that more places count, and some are held out.
    """
    names = [str(node.inputs[0].name) for node in nodes]  # type: ignore[union-attr]
    fed = {info.name for info in data.inputs}
    fetched = [n for n in dict.fromkeys(names) if n not in fed]
    session = Session(vendor_operators.runnable_part(model), optimize=True, tensors=fetched)
    some = data.few(SAMPLES)
    samples = some.samples or 1
    for together in _batches(nodes, narrow=narrow):
        grids = [_grid_of_input(node, placed) for node in together]
        moments = [Moments.of(node, second=second, narrow=narrow) for node in together]
        ours = [str(node.inputs[0].name) for node in together]  # type: ignore[union-attr]
        wanted = [n for n in dict.fromkeys(ours) if n not in fed]
        for feeds in some:
            values = {**feeds, **session.run(feeds, wanted)}
            for node, name, grid, moment in zip(together, ours, grids, moments, strict=True):
                if name in values and values[name].size:
                    found = _columns(values[name], node, samples, narrow=narrow)
                    moment.add(*_on_grid(found, grid))
        yield together, moments


def _batches(nodes: Sequence[ir.Node], *, narrow: bool) -> Iterator[list[ir.Node]]:
    """`nodes` in order, as many at a time as have :data:`ELEMENTS` moments together, those of held-out places included."""
    batch: list[ir.Node] = []
    held = 0
    for node in nodes:
        groups, _, inputs = columns.filters_of(_weight(node), node).shape
        parts, length = parts_of(groups, inputs)
        size = groups * parts * length**2 * (2 if narrow and length >= MANY else 1)
        if batch and held + size > ELEMENTS:
            yield batch
            batch, held = [], 0
        batch.append(node)
        held += size
    if batch:
        yield batch


def in_turn(
    model: ir.Model,
    nodes: Sequence[ir.Node],
    placed: Sequence[Placement],
    insert: Insert,
    data: Data,
    *,
    second: bool = True,
    narrow: bool = False,
) -> Iterator[tuple[list[ir.Node], list[Moments]]]:
    """Moments of layers behind all that is quantized in front of them, stage by stage.

    The layers of a stage do not read each other's results. The caller changes their weights in `model` before it asks for
    the next stage, which then runs behind them. What the range of a layer's input clips does not count as taken, as in
    :func:`alone` (MobileNetV2, W4A8, on other images: 7.6 dB where it does, 11.8 where it does not).

    Args:
        model: prepared float model; what is inserted goes into copies.
        nodes: layers of it.
        placed: quantizers with their parameters.
        insert: inserts quantizers into a copy of `model`.
        data: calibration data.
        second: False for the means alone.
        narrow: weights are, so that more places count, and some are held out.
    """
    stages, original = [batch for stage in _stages(nodes) for batch in _batches(stage, narrow=narrow)], model.clone()
    some = data.few(min(MOST, max(RUNS // max(len(stages), 1), FEWEST)))
    samples, count = some.samples or 1, sum(1 for _ in some)
    plain, behind = StageRuns(count, optimize=True), StageRuns(count, optimize=False, consumes=True)
    for number, stage in enumerate(stages):
        quantized = model.clone()
        insert(quantized, [])
        theirs = {str(node.name): _input_name(node) for node in quantized.graph}
        later = [node for following in stages[number + 1 :] for node in following]
        ours, read = _input_names(stage), [theirs.get(str(node.name), "") for node in stage]
        plain.begin(original, ours, _input_names(later))
        behind.begin(quantized, read, [theirs.get(str(node.name), "") for node in later])
        moments = [Moments.of(node, second=second, narrow=narrow) for node in stage]
        grids = [_grid_of_input(node, placed) for node in stage]
        for index, feeds in enumerate(some):
            wanted, found = plain.run(index, feeds), behind.run(index, feeds)
            for node, grid, moment, one, two in zip(stage, grids, moments, ours, read, strict=True):
                if one in wanted and two in found and wanted[one].size and wanted[one].shape == found[two].shape:
                    inputs = _columns(found[two], node, samples, narrow=narrow)
                    whole = _clipped(_columns(wanted[one], node, samples, narrow=narrow), grid)
                    moment.add(inputs, whole - inputs)
        yield stage, moments


def _input_names(nodes: Sequence[ir.Node]) -> list[str]:
    return [_input_name(node) for node in nodes]


def _input_name(node: ir.Node) -> str:
    return str(node.inputs[0].name) if node.inputs and node.inputs[0] is not None else ""


def _stages(nodes: Sequence[ir.Node]) -> list[list[ir.Node]]:
    """Layers by the longest chain of layers in front of them."""
    depth, chosen = dict[int, int](), set(map(id, nodes))
    graph = nodes[0].graph if nodes else None
    stages: list[list[ir.Node]] = []
    for node in graph or ():
        below = max((depth.get(id(value.producer()), 0) for value in node.inputs if value is not None), default=0)
        if id(node) in chosen:
            stages.extend([] for _ in range(below + 1 - len(stages)))
            stages[below].append(node)
            below += 1
        depth[id(node)] = below
    return stages


def _columns(values: npt.NDArray[Any], node: ir.Node, samples: int, *, narrow: bool) -> npt.NDArray[Any]:
    weight = _weight(node)
    inputs = columns.filters_of(weight, node).shape[2]
    total = COLUMNS * inputs
    if narrow:
        wanted = max(COLUMNS_OF_NARROW * inputs, PLACES_OF_NARROW * samples)
        total = max(total, min(wanted, PRODUCTS // (columns.groups_of(node) * inputs**2)))
    places = min(max(-(-total // samples), FEWEST), columns.POSITIONS)
    return columns.columns_of(values, node, weight.shape, places)


def _on_grid(values: npt.NDArray[Any], grid: QParams | None) -> tuple[npt.NDArray[Any], npt.NDArray[Any] | None]:
    """`values` on their grid, and what rounding takes from each where that counts."""
    if grid is None:
        return values, None
    inputs = numerics.fake_quantize(values, grid)
    if grid.qtype.bits >= notes.NARROW:
        return inputs, None
    return inputs, _clipped(values, grid) - inputs


def _clipped(values: npt.NDArray[Any], grid: QParams | None) -> npt.NDArray[Any]:
    """`values` cut to the range of `grid`."""
    if grid is None:
        return values
    ends = numerics.dequantize(np.array([grid.qtype.quant_min, grid.qtype.quant_max]), grid)
    return np.asarray(np.clip(values, *ends))


def _grid_of_input(node: ir.Node, placed: Sequence[Placement]) -> QParams | None:
    """Parameters of the activation that `node` reads; None where it is read in float."""
    grid = input_grid(node, placed)
    return None if grid is None or grid.axis is not None or grid.qtype.is_float else grid


def _weight(node: ir.Node) -> npt.NDArray[Any]:
    weight = query.constant_array(node.inputs[1])
    assert weight is not None
    return weight
