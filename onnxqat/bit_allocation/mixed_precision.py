"""Mixed precision: widths for each layer under a budget, and the file that has them."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

from onnxqat import former_names, metrics, notebook_progress
from onnxqat.backends import schema
from onnxqat.bit_allocation import candidates, costs, layer_times, rounding_errors, sensitivity
from onnxqat.bit_allocation.budget import Budget
from onnxqat.bit_allocation.candidates import BYTE, Layer, Widths
from onnxqat.bit_allocation.measuring import Measure, Measured
from onnxqat.bit_allocation.result import ChosenLayer, FrontPoint, MixedPrecision, Option
from onnxqat.bit_allocation.sensitivity import Method, Noise
from onnxqat.bit_allocation.solver import Choice, Front
from onnxqat.bridge.switched_module import SwitchedModule
from onnxqat.calibration import held_samples
from onnxqat.calibration.batch_size import open_fitted
from onnxqat.calibration.noise import decibels_of
from onnxqat.data import preprocess as lines
from onnxqat.data.data import Data
from onnxqat.deployment import deploy
from onnxqat.errors import DataError, ModelError, UsageError
from onnxqat.graph import io, qdq, walk
from onnxqat.insertion import rounding_choice
from onnxqat.insertion.insert import InsertResult, insert_qdq
from onnxqat.insertion.prepare import prepare
from onnxqat.insertion.weight_choice import Rounding
from onnxqat.passes._setting import Setting
from onnxqat.pipeline import recipes, run
from onnxqat.placement import table_overrides
from onnxqat.placement.override_options import options_of
from onnxqat.placement.table_overrides import Overrides
from onnxqat.runtime import broken_model
from onnxqat.shell import command
from onnxqat.types import Remark

if TYPE_CHECKING:
    from onnxqat.data.preprocess import Preprocess

SAMPLES = 32
"""Samples on which layers are compared: their noises differ by orders of magnitude, which few samples show."""
HELD = 4
"""One sample in so many is kept from the rounding that noise is predicted for. Layers of 1,280 inputs learn 100 samples by
heart: 17.4 dB were predicted for a MobileNetV2 on these and 14.2 on others, where the file has 14.9."""
MEASURED = 64
"""Samples of the calibration data that a file is measured on, where no others are given."""
TRIES = 3
"""Files that are written for a limit of latency."""
POINTS = 16
"""Points of the front that are shown, and among which a limit of loss is searched: 4 files are written for that."""


@former_names.renamed(calibration="data")
@notebook_progress.shown("noise of layers")
@broken_model.guard("model")
def mixed_precision(
    model: io.ModelSource,
    backend: str,
    data: Any,
    budget: Budget,
    *,
    output: str | os.PathLike[str] | None = None,
    held_out: Any = None,
    overrides: Overrides | None = None,
    widths: Sequence[int] | None = None,
    allow_float: bool = False,
    method: Method = "auto",
    samples: int = SAMPLES,
    rounding: Rounding = "auto",
    preprocess: str | Preprocess | None = None,
    batch_size: int | None = None,
    limit: int | None = None,
    score: metrics.ScoreSource | None = None,
    labels: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int | None], None] | None = None,
) -> MixedPrecision:
    """Choose bit widths layer by layer within `budget`, so that the outputs have least noise, and write the QDQ file.

    The noise that a layer brings at a width is measured or derived from gradients, noises are added, and the choice is
    the exact optimum of that sum. Layers with constant weights are chosen for; everything else is as the table says.

    Args:
        model: float model: path, onnx.ModelProto, onnx_ir.Model or onnx_graphsurgeon.Graph; it is not changed.
        backend: name or path of a backend table.
        data: calibration samples, what :func:`onnxqat.data.data.open_data` takes; it has to be readable more than once.
        budget: one limit.
        output: file to write; for a path, ``<name>.qdq.onnx`` beside it by default.
        held_out: samples to measure and score the file on; by default the first :data:`MEASURED` of `data`.
        overrides: user choices that win; nodes that they exclude or give widths to are not chosen for.
        widths: of weights to choose from; by default 3, 4, 5, 6 and 8, or 4 and 8 where the table stores 4 bits as such.
        allow_float: let layers stay in float too.
        method: ``measured``: a pass for each layer and width; ``gradient``: one backward pass; ``auto``: the first where
            it takes at most :data:`onnxqat.bit_allocation.sensitivity.CHEAP` passes of a sample.
        samples: number of samples for that.
        rounding: of weights, as of :func:`onnxqat.insertion.insert.insert_qdq`.
        preprocess: preprocessing line for image folders.
        batch_size: samples a batch.
        limit: largest number of calibration samples.
        score: metric or function of a :class:`onnxqat.metrics.Predictor`, for ``max_drop`` and for the report.
        labels: file or folder of labels, for a metric that reads one.
        progress: called with batches done and their number, when known.

    Raises:
        UsageError: ``backend-one-width``, ``budget-too-small``, ``option-invalid``, ``pattern-no-match``.
        DataError: ``data-missing``, ``data-format`` for data that can be read only once.
        ModelError, BackendError, CheckError: as inserting does; ``model-not-quantized`` where no layer has a choice.
    """
    _check(budget, score, method, samples)
    overrides = overrides or Overrides()
    table = table_overrides.apply(overrides, schema.load(backend))
    only_float = budget.cost in ("float-multiplications", "latency")  # which no width below 8 makes less of
    if only_float:
        asked = candidates.weight_widths(table, widths or (BYTE,), least=1)
    else:
        asked = candidates.weight_widths(table, widths)
    reading, counts_bytes = (preprocess, batch_size, limit), budget.cost == "weight-bytes"
    search = _Search(model, backend, table, data, overrides, rounding, reading, counts_bytes=counts_bytes)
    # Wide activations cost nothing where only weights count.
    layers = search.layers(asked, wide=budget.cost == "multiply-bits", allow_float=allow_float or only_float)
    times = search.times() if budget.cost == "latency" else None
    cost = costs.LayerCosts(budget.cost, tuple(layers), times)
    noises, how = search.noises(layers, method, samples, progress)
    options = [[_option(layer, noise, w) for w in layer.options] for layer, noise in zip(layers, noises, strict=True)]
    front = Front(
        [[cost.units(layer, w) for w in layer.options] for layer in layers],
        [[option.noise for option in row] for row in options],
    )
    measure = Measure(model, search.measured_on(held_out), score, labels)
    amount = budget.amount(cost.whole)
    write = _Writer(search, layers, output, measure)
    latency: float | None = None
    if amount is None:
        choice, written, found, reached = _cheapest(front, budget, write)
    elif budget.latency is None:
        choice, reached = front[_within(front, amount, cost)], True
        written, found = write(choice)
    else:
        choice, written, found, latency = _as_fast(front, amount, cost, write)
        reached = latency <= amount
    node_bits, exclude = write.overrides(choice)
    return MixedPrecision(
        model=written.model,
        layers=tuple(
            ChosenLayer(layer.node, layer.op_type, layer.weights, row[option], tuple(row))
            for layer, row, option in zip(layers, options, choice.options, strict=True)
        ),
        front=_points(front, choice, cost),
        cost=budget.cost,
        budget=amount,
        total=cost.total(choice.cost),
        whole=cost.whole,
        latency_ms=latency,
        integer_share=_integer_share(layers, choice),
        predicted_db=decibels_of(choice.noise),
        measured_db=found.sqnr_db,
        samples=found.samples,
        method=how,
        score=found.score,
        reached=reached,
        node_bits=node_bits,
        exclude=exclude,
        following=search.command(written, node_bits, exclude),
        remarks=(*search.remarks, *written.remarks),
    )


def _check(budget: Budget, score: object, method: str, samples: int) -> None:
    budget.amount(1.0)  # what is no amount is refused before anything is measured
    if budget.max_drop is not None and score is None:
        raise UsageError("option-invalid", "a largest drop is one of a score", hint="give a score too, as --score top1")
    if method not in get_args(Method):
        raise UsageError("option-invalid", f"method is {method!r}", hint=", ".join(get_args(Method)))
    if samples < 1:
        raise UsageError("option-invalid", f"{samples} samples; there must be at least 1")


class _Search:
    """The float model, its prepared graph and its data."""

    def __init__(
        self,
        model: io.ModelSource,
        backend: str,
        table: schema.Backend,
        data: Any,
        overrides: Overrides,
        rounding: Rounding,
        reading: tuple[str | Preprocess | None, int | None, int | None],
        *,
        counts_bytes: bool,
    ) -> None:
        self._model, self._backend, self._table = model, backend, table
        self._overrides, self._rounding, self._source = overrides, rounding, data
        self._preprocess, self._batch_size, self._limit = reading
        self.remarks: list[Remark] = []
        self._graph = io.load(model)
        if qdq.is_quantized(self._graph):
            raise ModelError("model-already-quantized", "the model holds quantizers", hint="start from the float model")
        self._data = self._open(data, self._limit)
        if counts_bytes and candidates.is_stored_in_bytes(table):
            text = (
                f"weight bytes are those of codes packed at their width; {table.backend} and the file store a byte for"
                " each, and only a compiler that packs them makes the model smaller"
            )
            self.remarks.append(Remark(text, (), "mixed-precision"))

    def _open(self, source: Any, limit: int | None) -> Data:
        if source is None:
            raise DataError("data-missing", "there are no calibration data", hint="give --data")
        found = open_fitted(source, self._graph, preprocess=self._preprocess, batch_size=self._batch_size, limit=limit)
        found.check_repeatable("every step of the search reads it")
        return found

    def measured_on(self, held_out: Any) -> Data:
        """Samples that a file is measured on."""
        return self._data.first(MEASURED) if held_out is None else self._open(held_out, None)

    def layers(self, widths: Sequence[int], *, wide: bool, allow_float: bool) -> list[Layer]:
        """Layers to choose widths for.

        Raises:
            ModelError: ``model-not-quantized``: there are none.
        """
        named = self._graph.clone()
        run.rewrite(named, recipes.NAME, Setting(self._table, self._overrides))
        names = frozenset(
            str(name) for n in walk.nodes(named) for name in (n.name, *(v.name for v in n.outputs)) if name
        )
        prepared = self._graph.clone()
        chosen = prepare(prepared, self._table, self._overrides, [], batch_norm="fold")
        found, plan, remarks = candidates.find(
            prepared, self._table, chosen, names, widths, wide=wide, allow_float=allow_float
        )
        self.remarks += remarks
        self._prepared, self._are_scales_free = prepared, rounding_choice.are_scales_free(plan)
        if not found:
            text = f"{self._table.backend} quantizes no layer with constant weights whose width could be chosen"
            raise ModelError("model-not-quantized", text, hint="`onnxqat lint` says what stays in float, and why")
        return found

    def noises(
        self,
        layers: Sequence[Layer],
        method: Method,
        samples: int,
        progress: Callable[[int, int | None], None] | None,
    ) -> tuple[list[Noise], Any]:
        """Noise of each layer, and the method that found it."""
        switched = SwitchedModule(self._base.model)
        how = sensitivity.choose(method, layers, samples)
        size = sensitivity.BATCH if how == "gradient" else None
        rest, others = self._parts()
        data = others.few(samples, batch_size=size)
        return sensitivity.noises(switched, layers, data, how, self._errors(layers, rest), progress), how

    def _parts(self) -> tuple[Data | None, Data]:
        """Samples to round weights on, None where there are too few for that, and others to measure the noise on."""
        if self._rounding == "nearest":
            return None, self._data
        rest, held = self._data.split(HELD)
        try:
            enough = held_samples.can_tell(list(held.few(held_samples.FEWEST)))
        except DataError:  # it has no batch
            enough = False
        return (rest, held) if enough else (None, self._data)

    def _errors(self, layers: Sequence[Layer], rest: Data | None) -> rounding_errors.Errors:
        """Errors of the weights by width, rounded as the file's will be, as far as layers can be looked at alone."""
        if rest is None:
            return rounding_errors.nearest(self._prepared, layers)
        return rounding_errors.compensated(self._prepared, layers, rest, scales=self._are_scales_free)

    @functools.cached_property
    def _base(self) -> InsertResult[Any]:
        """The graph with every layer quantized as the table says, on few decisions."""
        return insert_qdq(
            self._graph,
            self._backend,
            data=self._data,
            overrides=self._overrides,
            equalize=False,
            rounding="nearest",
            batch_norm="fold",
            guard=False,
            fast=True,
        )

    def times(self) -> layer_times.LayerTimes:
        """Times of all kernels for one sample, on integers and in float.

        Raises:
            UsageError: as :func:`onnxqat.bit_allocation.layer_times.measure`.
        """
        layer_times.timing(self._table)  # which refuses before anything is calibrated
        return layer_times.measure(io.load(self._base.model), self._table, self._sample())

    def latency(self, written: InsertResult[Any]) -> float:
        """Milliseconds of all kernels of a written file for one sample."""
        deployed = deploy.deploy_form(io.load(written.model), self._table, [])
        return 1e3 * layer_times.of(deployed, layer_times.timing(self._table), self._sample())[1]

    def _sample(self) -> Mapping[str, Any]:
        return next(iter(self._data.few(1, batch_size=1)))

    def insert(
        self,
        output: str | os.PathLike[str] | None,
        node_bits: tuple[tuple[str, int, int], ...],
        exclude: tuple[str, ...],
    ) -> InsertResult[Any]:
        """Write the file with these widths."""
        return insert_qdq(
            self._model,
            self._backend,
            data=self._data,
            output=output,
            overrides=self._changed(node_bits, exclude),
            rounding=self._rounding,
            batch_norm="fold",
        )

    def command(
        self, written: InsertResult[Any], node_bits: tuple[tuple[str, int, int], ...], exclude: tuple[str, ...]
    ) -> str:
        """The ``insert-qdq`` command that writes the file again, as far as options of the command line go."""
        source = os.fspath(self._model) if isinstance(self._model, (str, os.PathLike)) else "MODEL.onnx"
        data = self._source if isinstance(self._source, (str, os.PathLike)) else "DATA"
        line = self._preprocess
        chosen = self._changed(node_bits, exclude)
        return command(
            "insert-qdq",
            source,
            backend=self._backend,
            calibration=data,
            preprocess=line if isinstance(line, (str, type(None))) else lines.line(line),
            batch_size=self._batch_size,
            limit=self._limit,
            rounding=None if self._rounding == "auto" else self._rounding,
            batch_norm="fold",
            o=written.model if isinstance(written.model, (str, os.PathLike)) else "MODEL.qdq.onnx",
            **options_of(chosen),
        )

    def _changed(self, node_bits: tuple[tuple[str, int, int], ...], exclude: tuple[str, ...]) -> Overrides:
        """The user's choices with these widths, and these layers in float."""
        given = self._overrides
        return dataclasses.replace(given, node_bits=(*given.node_bits, *node_bits), exclude=(*given.exclude, *exclude))


class _Writer:
    """Writes the file of a choice, and measures it."""

    def __init__(
        self, search: _Search, layers: Sequence[Layer], output: str | os.PathLike[str] | None, measure: Measure
    ) -> None:
        self._search, self._layers, self._output, self._measure = search, layers, output, measure

    def overrides(self, choice: Choice) -> tuple[tuple[tuple[str, int, int], ...], tuple[str, ...]]:
        """Widths that differ from the table's, the longest names last so that no pattern hides one, and float layers."""
        found = [(layer, layer.options[option]) for layer, option in zip(self._layers, choice.options, strict=True)]
        bits = [(layer.node, w.weight, w.activation) for layer, w in found if not w.is_float and w != layer.default]
        return tuple(sorted(bits, key=lambda b: (len(b[0]), b))), tuple(layer.node for layer, w in found if w.is_float)

    def latency(self, written: InsertResult[Any]) -> float:
        """Milliseconds of a written file for one sample."""
        return self._search.latency(written)

    def __call__(self, choice: Choice) -> tuple[InsertResult[Any], Measured]:
        """The file, and what is measured of it."""
        written = self._search.insert(self._output, *self.overrides(choice))
        return written, self._measure.of(written.model)


def _within(front: Front, amount: float, cost: costs.LayerCosts) -> int:
    """Number of the choice with least noise within `amount`.

    Raises:
        UsageError: ``budget-too-small``.
    """
    number = front.within(costs.whole(amount, cost.cost) - cost.fixed)
    if number is None:
        least = cost.total(front[0].cost)
        raise UsageError(
            "budget-too-small",
            f"no choice of widths has at most {amount:.4g} {costs.UNITS[cost.cost]}: the least is {least:.4g}",
            hint="raise the budget, or give narrower --widths",
        )
    return number


def _as_fast(
    front: Front, amount: float, cost: costs.LayerCosts, write: _Writer
) -> tuple[Choice, InsertResult[Any], Measured, float]:
    """The choice of least noise whose file takes at most `amount` milliseconds, as measured.

    Times of single kernels leave out the conversions where float and integer layers meet: a file that takes longer than
    they say is written again with so much less. The last of :data:`TRIES` files has every layer on integers, without
    such conversions.
    """
    number, limit = _within(front, amount, cost), amount
    for _ in range(TRIES - 1):
        choice = front[number]
        written, found = write(choice)
        latency = write.latency(written)
        if latency <= amount:
            return choice, written, found, latency
        limit -= latency - amount
        faster = front.within(costs.whole(limit, cost.cost) - cost.fixed)
        if faster is None or faster == number:
            break
        number = faster
    on_integers = _all_on_integers(front, cost)
    if choice.options != on_integers.options:
        choice = on_integers
        written, found = write(choice)
        latency = write.latency(written)
    return choice, written, found, latency


def _all_on_integers(front: Front, cost: costs.LayerCosts) -> Choice:
    """The choice without a layer in float, each at the widest of its other widths."""
    options = tuple(sum(not widths.is_float for widths in layer.options) - 1 for layer in cost.layers)
    units = sum(cost.units(layer, layer.options[i]) for layer, i in zip(cost.layers, options, strict=True))
    return Choice(options, units, front.noise(options))


def _cheapest(front: Front, budget: Budget, write: _Writer) -> tuple[Choice, InsertResult[Any], Measured, bool]:
    """The cheapest of :data:`POINTS` points that keeps the limit of loss, by bisection: what is written last stays.

    Noise falls along the front, so that the first point that keeps the limit is found with few files. Where none does,
    it is the last point.
    """
    numbers = front.sample(POINTS)
    low, high = 0, len(numbers) - 1
    files: dict[int, tuple[InsertResult[Any], Measured]] = {}
    while low < high:
        middle = (low + high) // 2
        files = {middle: write(front[numbers[middle]])}
        low, high = (low, middle) if files[middle][1].keeps(budget) else (middle + 1, high)
    written, found = files[low] if low in files else write(front[numbers[low]])
    return front[numbers[low]], written, found, found.keeps(budget)


def _option(layer: Layer, noise: Noise, widths: Widths) -> Option:
    return Option(
        widths.weight,
        widths.activation,
        costs.amount(costs.units(layer, widths, "weight-bytes"), "weight-bytes"),
        costs.units(layer, widths, "multiply-bits"),
        noise.of(widths),
    )


def _points(front: Front, chosen: Choice, costs_of: costs.LayerCosts) -> tuple[FrontPoint, ...]:
    found, whole = [], costs_of.whole
    choices = {choice.options: choice for choice in (chosen, *(front[number] for number in front.sample(POINTS)))}
    for choice in sorted(choices.values(), key=lambda c: c.cost):
        bits = tuple(layer.options[i].weight for layer, i in zip(costs_of.layers, choice.options, strict=True))
        total = costs_of.total(choice.cost)
        share = total / whole if whole else 0.0
        found.append(FrontPoint(total, share, decibels_of(choice.noise), choice.options == chosen.options, bits))
    return tuple(found)


def _integer_share(layers: Sequence[Layer], choice: Choice) -> float:
    total = sum(layer.macs for layer in layers)
    floats = sum(
        layer.macs for layer, option in zip(layers, choice.options, strict=True) if layer.options[option].is_float
    )
    return 1.0 - floats / total if total else 1.0
