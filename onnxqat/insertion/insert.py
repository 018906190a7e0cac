"""Float ONNX in, calibrated QDQ ONNX out: prepare, plan, calibrate, insert."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    TypeVar,
    cast,
    get_args,
    overload,
)

import onnx_ir as ir

from onnxqat import former_names, notebook_progress
from onnxqat.analysis import random_draws
from onnxqat.backends import equalizations, schema
from onnxqat.displayed import Displayed
from onnxqat.errors import UsageError
from onnxqat.graph import build, bundles, edit, files_read, io, notes, provenance, qdq, query, walk
from onnxqat.insertion import kept_weights, needed_data, records, weight_choice
from onnxqat.insertion.prepare import BatchNorm, prepare
from onnxqat.insertion.weight_choice import Rounding, WeightChoice
from onnxqat.integer_functions import calls
from onnxqat.passes import _opset
from onnxqat.passes._held_quantizers import settle_quantizers
from onnxqat.passes._setting import Setting
from onnxqat.pipeline import added, recipes, run
from onnxqat.pipeline.lookup import PassSource
from onnxqat.placement import compiler_limits, given_encodings, planner, table_overrides
from onnxqat.placement.table_overrides import NodeSelection, Overrides
from onnxqat.runtime import broken_model
from onnxqat.types import QParams, QuantPlan, Remark, TensorSpec

if TYPE_CHECKING:
    from onnxqat.calibration.resolve import Resolved
    from onnxqat.calibration.row_dynamic_range import RowSizes
    from onnxqat.calibration.runner import Observed
    from onnxqat.data.data import Data
    from onnxqat.data.preprocess import Preprocess
    from onnxqat.insertion.guard import Guarded
    from onnxqat.insertion.placing import Calibrated
    from onnxqat.insertion.rounded import KeptRoundings
    from onnxqat.insertion.trial import Trial

RANDOM_BATCHES = 4
MadeT = TypeVar("MadeT")
P = ParamSpec("P")


@dataclasses.dataclass(frozen=True)
class InsertResult(Displayed, Generic[MadeT]):
    """Result of :func:`insert_qdq`.

    Attributes:
        model: the quantized model, of the kind that was given; for a path, the path of the file written.
        plan: the decision for every edge and node.
        remarks: what is worth knowing, in the order in which it was found.
        quantizers: number of quantizers by role.
        trial: result on a few calibration samples; None on random data, on data that can be read only once, and where
            onnxruntime does not run the model.
        guard: measures against an output below the floor; None where none were needed.
    """

    displayed_by: ClassVar[str] = "onnxqat.report.build:from_insert"

    model: MadeT
    plan: QuantPlan
    remarks: tuple[Remark, ...]
    quantizers: dict[str, int]
    trial: Trial | None = None
    guard: Guarded | None = None


class _InsertQdq(Protocol[P]):
    """:func:`insert_qdq` by the kind of its model; its other parameters are stated once, where it is defined."""

    @overload
    def __call__(self, model: io.ModelT, *args: P.args, **kwargs: P.kwargs) -> InsertResult[io.ModelT]: ...

    @overload
    def __call__(self, model: str | os.PathLike[str], *args: P.args, **kwargs: P.kwargs) -> InsertResult[Path]: ...


def _by_kind(function: Callable[Concatenate[io.ModelSource, P], InsertResult[Any]]) -> _InsertQdq[P]:
    return cast("_InsertQdq[P]", function)


@_by_kind
@former_names.renamed(calibration="data")
@notebook_progress.shown("calibrate")
@broken_model.guard("model")
def insert_qdq(
    model: io.ModelSource,
    backend: str = "onnxruntime-cpu",
    *,
    data: Any = None,
    output: str | os.PathLike[str] | None = None,
    overrides: Overrides | None = None,
    preprocess: str | Preprocess | None = None,
    batch_size: int | None = None,
    limit: int | None = None,
    random_data: bool = False,
    replace: bool = False,
    keep: bool = False,
    simplify: bool = False,
    equalize: bool | str | Sequence[str] = True,
    rounding: Rounding = "auto",
    bias_correction: bool | None = None,
    batch_norm: BatchNorm = "auto",
    keep_io_types: bool = True,
    passes: Sequence[PassSource | tuple[PassSource, str]] = (),
    guard: bool = True,
    fast: bool = False,
    progress: Callable[[int, int | None], None] | None = None,
) -> InsertResult[Any]:
    """Place and calibrate Q/DQ pairs by a backend's table; the result is in train form.

    Args:
        model: float model: path, onnx.ModelProto, onnx_ir.Model or onnx_graphsurgeon.Graph; it is not changed.
        backend: name of a backend table, or path of one.
        data: calibration samples, what :func:`onnxqat.data.data.open_data` takes; tables of weights alone need none.
        output: file to write; for a path, ``<name>.qdq.onnx`` beside it by default.
        overrides: user choices that win over the table.
        preprocess: preprocessing line for image folders.
        batch_size: largest number of samples in a calibration batch, 32 by default; fewer where their tensors would take
            over 512 MB (:mod:`onnxqat.calibration.batch_size`).
        limit: largest number of calibration samples.
        random_data: calibrate on random numbers; the file is marked as such.
        replace: strip the quantizers of an already quantized model first.
        keep: leave the quantizers of an already quantized model as they are, and add what is missing.
        simplify: run onnxsim first, behind a check that the function is kept.
        equalize: names of the equalizations that bring channels of very different size to sizes that one scale suits
            (:mod:`onnxqat.backends.equalizations`): ``"auto"`` for those that help on samples that are held out,
            ``"none"``; True for what the table says, which is ``"auto"`` in most.
        rounding: ``"gptq"``, or ``"compensated"``, rounds the weights of layers on the calibration data
            (:mod:`onnxqat.calibration.rounding`) and corrects biases; ``"nearest"`` leaves weights and biases; ``"auto"``
            rounds on the data where that helps on samples that are held out.
        bias_correction: correct biases on the calibration data, whatever the rounding, or leave them; None: where
            weights are rounded on the data.
        batch_norm: ``"keep"`` leaves a BatchNormalization in the file, to be trained: behind its layer where the
            backend's weight scales can take it up at deployment, else in front of the quantizers, where the graph
            folds it; ``"fold"`` folds it into the weights before they are quantized; ``"auto"`` keeps it where weights have
            3 bits or fewer and it can go behind its layer, and folds it elsewhere.
        keep_io_types: a model in float16, bfloat16 or double is computed in float32; its inputs and outputs keep their
            types, behind a Cast, or become float32 too.
        passes: passes of your own, which prepare the float model too: names, paths of files, subclasses of ``Pass``,
            objects, or functions on an ``onnx_ir.Model`` or a graphsurgeon ``Graph``. They run at the end, or where a
            place says: ``"FILE:before=NAME"``, ``(function, "after=NAME")``, with a name of
            :data:`onnxqat.pipeline.recipes.PREPARE`.
        guard: where an output falls below 20 dB in the trial, find the quantizers that cost it and give them another
            range, 16 bits, or float (:mod:`onnxqat.insertion.guard`); what is not finite, too.
        fast: neither compare ranges and equalizations at the outputs of the network nor round on the data, unless
            `rounding` or `equalize` asks for it by name.
        progress: called with batches done and their number, when known.

    Raises:
        ModelError: ``model-already-quantized``, ``model-form``, ``target-refuses``, and everything that :func:`onnxqat.graph.io.load` raises.
        DataError: ``data-missing`` without calibration data where an activation is quantized.
        BackendError: ``backend-unknown``, ``backend-table``, ``backend-opset``.
        UsageError: ``pattern-no-match``, ``option-invalid``.
        CheckError: ``quantized-not-finite``: NaN or infinities where the float model has none; nothing is written.
    """
    _check_choices(batch_norm, replace=replace, keep=keep)
    overrides = overrides or Overrides()
    own_passes = added.placed(passes, recipes.PREPARE)
    encodings = given_encodings.read(overrides.encodings)
    table = table_overrides.apply(overrides, schema.load(backend))
    choice = weight_choice.chosen(rounding, bias_correction, table)
    # Encodings of weights are for the weights of the float file.
    equalizing = equalizations.choices(equalize, table.equalize) if not encodings or equalize is not True else ()
    output = _planned(output, model)
    graph = io.load(model)
    remarks = [Remark(f"backend table {table.backend}: {text}", (), "table") for text in table.former_keys]
    origin = records.origin(model, graph)
    settle_quantizers(graph, model, remarks, replace=replace, keep=keep)
    original = graph.clone()
    remarks.extend(random_draws.remarks(original))
    chosen = prepare(
        graph,
        table,
        overrides,
        remarks,
        simplify=simplify,
        batch_norm=batch_norm,
        compute=True,
        keep_io_types=keep_io_types,
        added=own_passes,
    )
    chosen = _reachable(graph, table, chosen, remarks)
    given = {"data": data, "random_data": random_data, "rounds": choice.needs_data}
    remarks.extend(kept_weights.remarks(original, table))
    remarks.extend(needed_data.check(graph, table, chosen, encodings, **given))
    samples = _open(graph, data, preprocess, batch_size, limit)
    if equalizing:
        seen = None if data is None else samples
        remarks.extend(_equalize(graph, table, chosen, seen, equalizing, choice, compares=not fast))
    from onnxqat.insertion import accumulator_cost
    from onnxqat.insertion import guard as guarding
    from onnxqat.insertion.rounded import KeptRoundings

    # Random numbers say nothing of how large codes get, and --safe-range takes no data's word for it.
    trusts_data = data is not None and not overrides.safe_range
    calibrated = _calibrate(graph, table, chosen, samples, progress, watches_peaks=trusts_data)
    calibrated = dataclasses.replace(calibrated, given=encodings)
    has_file, kept = bool(origin.float_model), KeptRoundings()
    if fast or data is None:
        choice = choice.without_data()
    else:
        remarks.extend(accumulator_cost.of_options(original, calibrated, (backend, overrides), samples, place))
        remarks.extend(_choose_ranges(calibrated, samples, choice, has_file=has_file, kept=kept))
    make = functools.partial(_round_and_place, table=table, data=samples, choice=choice, has_file=has_file, kept=kept)
    finished = functools.partial(_finished, table=table, overrides=overrides) if table.integer else None
    watch = guarding.Guard(original, calibrated, samples, overrides, make, mends=guard, finished=finished)
    made = watch.make(remarks, tries=data is not None)
    ranges = "none" if data is None else "data"
    ranges = "random" if random_data else ranges
    records.describe(made.model, table, calibration=ranges, exact=overrides.exact, passes=[p.name for p in own_passes])
    remarks.extend(_finish_operators(made.model, table, overrides))
    provenance.write(made.model, origin if data is None else records.with_data(origin, samples))
    result = _finish(model, made.model, output, made.plan, remarks)
    return dataclasses.replace(result, trial=made.trial, guard=made.guarded)


def _planned(output: str | os.PathLike[str] | None, model: io.ModelSource) -> str | os.PathLike[str] | None:
    """The file to write: beside the file `model` where none is named; None where there is none."""
    if output is None and isinstance(model, (str, os.PathLike)):
        output = bundles.outside(model).with_suffix(".qdq.onnx")
    files_read.plan(output)
    return output


def _check_choices(batch_norm: str, *, replace: bool, keep: bool) -> None:
    if batch_norm not in get_args(BatchNorm):
        raise UsageError("option-invalid", f"batch_norm is {batch_norm!r}", hint=", ".join(get_args(BatchNorm)))
    if replace and keep:
        raise UsageError("option-invalid", "quantizers can be replaced or kept, not both")


def _open(
    model: ir.Model, source: Any, preprocess: str | Preprocess | None, batch_size: int | None, limit: int | None
) -> Data:
    from onnxqat.calibration.batch_size import open_fitted
    from onnxqat.data import data, inputs

    if source is None:
        return data.random_data(inputs.of_graph(model.graph), RANDOM_BATCHES)
    return open_fitted(source, model, preprocess=preprocess, batch_size=batch_size, limit=limit)


def _reachable(model: ir.Model, table: schema.Backend, chosen: NodeSelection, remarks: list[Remark]) -> NodeSelection:
    """`chosen`, without what calibration cannot run; an error where the target's compiler is known to stop."""
    from onnxqat.runtime import vendor_operators

    _opset.check(model, table.backend, table.opset)
    nodes, reason, found = vendor_operators.out_of_reach(model)
    remarks.extend((*found, *compiler_limits.check(model, table, chosen)))
    return table_overrides.without(chosen, dict.fromkeys(nodes, reason))


def _calibrate(
    model: ir.Model,
    table: schema.Backend,
    chosen: NodeSelection,
    data: Data,
    progress: Callable[[int, int | None], None] | None,
    *,
    watches_peaks: bool,
) -> Calibrated:
    """Plan the table, run the float model over the data, and keep plan, observers and sizes of rows and channels."""
    from onnxqat.calibration import channel_peaks, resolve, row_dynamic_range, runner
    from onnxqat.insertion.placing import Calibrated
    from onnxqat.runtime import vendor_operators

    plan = planner.plan(model, table, chosen)
    wanted = resolve.tensors_to_observe(plan)
    sizes = row_dynamic_range.row_sizes(model, wanted)
    peaks = channel_peaks.of_plan(plan, model) if watches_peaks else {}
    watch = runner.watchers({name: seen for name, seen in peaks.items() if name in wanted}, sizes)
    observers = runner.calibrate(vendor_operators.runnable_part(model), wanted, data, progress=progress, watch=watch)
    return Calibrated.of(model, table, chosen, plan, observers, sizes, peaks)


def _equalize(
    model: ir.Model,
    table: schema.Backend,
    chosen: NodeSelection,
    data: Data | None,
    choices: Sequence[equalizations.Choice],
    choice: WeightChoice,
    *,
    compares: bool,
) -> tuple[Remark, ...]:
    from onnxqat.equalization.equalize import equalize

    quantize = functools.partial(_quantized, table=table, chosen=chosen, choice=choice)
    return equalize(model, table, chosen, data, choices, quantize, compares=compares)


def _quantized(
    model: ir.Model, data: Data, *, table: schema.Backend, chosen: NodeSelection, choice: WeightChoice
) -> ir.Model:
    """A copy of `model` with the quantizers that table and data lead to.

    Weights with one scale are rounded on the data, where the file's will be: that takes up most of what uneven channels
    cost, and an equalization that helps with nearest codes may not help then. Others are rounded to nearest.
    """
    copy = model.clone()
    plan, resolved = _calibrate(copy, table, chosen, data, None, watches_peaks=False).settle([])
    weights = [e.decision for e in plan.edges if isinstance(e.decision, TensorSpec) and e.decision.role == "weight"]
    rounds = choice.rounding != "nearest" and table.sums != "tie_free" and any(spec.axis is None for spec in weights)
    if rounds:
        asked = dataclasses.replace(choice, rounding="compensated")
        _round_and_place(copy, plan, resolved, [], table=table, data=data, choice=asked, has_file=False)
    else:
        place(copy, [], table=table, plan=plan, resolved=resolved)
    return copy


def _choose_ranges(
    calibrated: Calibrated, data: Data, choice: WeightChoice, *, has_file: bool, kept: KeptRoundings
) -> tuple[Remark, ...]:
    from onnxqat.insertion import range_trial
    from onnxqat.insertion.rounding_choice import noise_in_turn

    def noise() -> float | None:
        plan = calibrated.plan()
        resolved = calibrated.resolve(plan)

        def insert(target: ir.Model, found: list[Remark], grids: Mapping[str, QParams]) -> None:
            place(target, found, table=calibrated.table, plan=plan, resolved=resolved.with_grids(grids))

        return noise_in_turn(calibrated.model, plan, resolved, data, choice, insert, has_file=has_file, kept=kept)

    return range_trial.choose(calibrated, data, noise)


def _round_and_place(
    model: ir.Model,
    plan: QuantPlan,
    resolved: Resolved,
    remarks: list[Remark],
    *,
    table: schema.Backend,
    data: Data,
    choice: WeightChoice,
    has_file: bool,
    kept: KeptRoundings | None = None,
) -> None:
    from onnxqat.insertion.rounding_choice import round_weights

    def insert(target: ir.Model, found: list[Remark], grids: Mapping[str, QParams]) -> None:
        place(target, found, table=table, plan=plan, resolved=resolved.with_grids(grids))

    said, grids = round_weights(model, plan, resolved, data, choice, insert, has_file=has_file, kept=kept)
    remarks.extend(said)
    insert(model, remarks, grids)


def settle(
    model: ir.Model,
    table: schema.Backend,
    chosen: NodeSelection,
    plan: QuantPlan,
    observers: Observed,
    sizes: dict[str, RowSizes],
    remarks: list[Remark],
) -> tuple[QuantPlan, Resolved]:
    """The plan that the data lead to, which may leave more in float, and its parameters.

    Args:
        model: prepared float model.
        table: backend table, user overrides applied.
        chosen: nodes that the user took out.
        plan: what the graph alone leads to.
        observers: of the tensors of ``resolve.tensors_to_observe(plan)``.
        sizes: of the rows that normalized layers read.
        remarks: what is found is added.
    """
    from onnxqat.insertion.placing import Calibrated

    return Calibrated.of(model, table, chosen, plan, observers, sizes).settle(remarks)


def place(
    model: ir.Model, remarks: list[Remark], *, table: schema.Backend, plan: QuantPlan, resolved: Resolved
) -> None:
    """Insert the quantizers of `resolved` into `model`, in place; nodes that stay in float note why."""
    if plan.tie_free_sums:
        from onnxqat.calibration.exact import tie_free_sums

        tie_free_sums.make_odd(model, plan, resolved.placements)
    if table.accumulator_bits is not None:
        resolved = _within_accumulators(model, remarks, table, resolved)
    setting = Setting(table, placements=resolved.placements, biases=resolved.biases)
    remarks.extend(run.rewrite(model, recipes.PLACE, setting).remarks)
    edit.remove_unused(model)
    _note(model, plan, resolved)


def _within_accumulators(model: ir.Model, remarks: list[Remark], table: schema.Backend, resolved: Resolved) -> Resolved:
    """`resolved` with weight scales that keep sums within the width of the table; `model` notes the width."""
    from onnxqat.calibration import accumulator_limits

    assert table.accumulator_bits is not None
    trial = model.clone()
    run.rewrite(trial, recipes.PLACE, Setting(table, placements=resolved.placements, biases=resolved.biases))
    found = accumulator_limits.limits(trial, table.accumulator_bits)
    remarks.extend(found.remarks())
    model.metadata_props[notes.ACCUMULATOR_BITS] = str(table.accumulator_bits)
    return resolved.with_grids(found.grids)


def _finish_operators(model: ir.Model, table: schema.Backend, overrides: Overrides) -> tuple[Remark, ...]:
    """Put integer functions in the place of the operators that table or user name."""
    if not table.integer:
        return ()
    found = run.rewrite(model, recipes.FINISH, Setting(table, overrides)).remarks
    edit.remove_unused(model)
    return found


def _finished(model: ir.Model, table: schema.Backend, overrides: Overrides) -> ir.Model:
    """A copy of `model` with its integer functions."""
    copy = model.clone()
    _finish_operators(copy, table, overrides)
    return copy


def _note(model: ir.Model, plan: QuantPlan, resolved: Resolved) -> None:
    """Note on each node why it stays in float, or how large its input codes get, for ``explain`` and ``lint``."""
    from onnxqat.calibration import largest_codes

    reasons = dict(plan.float_nodes)
    for node in walk.nodes(model):
        reason = reasons.get(query.label(node))
        if str(node.name) in resolved.largest_codes:
            largest_codes.note(node, resolved.largest_codes[str(node.name)])
        if reason is not None:
            node.metadata_props[build.LEFT_FLOAT] = reason


def _finish(
    source: io.ModelSource,
    model: ir.Model,
    output: str | os.PathLike[str] | None,
    plan: QuantPlan,
    remarks: list[Remark],
) -> InsertResult[Any]:
    counts: dict[str, int] = {"activation": 0, "weight": 0, "bias": 0}
    for quantizer in qdq.quantizers(calls.as_pairs(model), every=True):
        counts[quantizer.role] += 1
    remarks.extend([] if any(counts.values()) else [_nothing(plan)])
    return InsertResult(io.give_back(source, model, output), plan, tuple(remarks), counts)


def _nothing(plan: QuantPlan) -> Remark:
    """That the file is as it was but for its metadata, and the reason that most of its nodes have."""
    reasons = Counter(reason for _, reason in plan.float_nodes).most_common(1)
    why = reasons[0][0] if reasons else f"{plan.backend} has a row for none of its operators"
    nodes = tuple(node for node, reason in plan.float_nodes if reason == why)
    return Remark(f"nothing is quantized: {why}", nodes, "insert", "result")
