"""The guard of insert_qdq: an output below the floor is relieved of the quantizers that cost it."""

import dataclasses
import functools
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxqat
from onnxqat.data.data import open_data
from onnxqat.data.inputs import of_graph
from onnxqat.errors import CheckError, ModelError
from onnxqat.graph import qdq
from onnxqat.insertion import guard as guarding
from onnxqat.insertion import relief, suspicion, trial
from onnxqat.insertion.change import Change
from onnxqat.insertion.choices import NONE, Choices
from onnxqat.insertion.culprits import Unit
from onnxqat.insertion.insert import InsertResult
from onnxqat.insertion.meter import Excess, Meter
from onnxqat.insertion.relief import Relief
from onnxqat.placement.table_overrides import Overrides
from onnxqat.report import build, json, terminal
from onnxqat.types import TensorSpec
from onnxqat.verdict import AMBER_SQNR
from tests.insertion import culprits


def insert(made: culprits.Made, backend: str = "onnxruntime-cpu", **options: object) -> InsertResult:
    """Without equalization, which would relieve uneven channels before the guard sees them."""
    model, data = made
    return onnxqat.insert_qdq(ir.from_proto(model), backend, data=data, equalize=(), **options)


def quantized(result: InsertResult) -> dict[str, int]:
    """Bits of each quantized activation."""
    return {q.tensor: q.qparams.qtype.bits for q in qdq.quantizers(result.model) if q.role == "activation"}


def worst(result: InsertResult) -> float:
    assert result.trial is not None
    return result.trial.worst


@pytest.mark.parametrize(
    ("made", "tensor"),
    [(culprits.outlier_channel, "scaled"), (culprits.cancelled, "wide"), (culprits.in_branch, "wide")],
)
def test_a_culprit_goes_float_with_its_reason_and_cost(made: Callable[[], culprits.Made], tensor: str) -> None:
    plain, result = insert(made(), guard=False), insert(made())
    assert worst(plain) < 10
    assert plain.guard is None
    assert worst(result) > AMBER_SQNR
    assert result.guard is not None
    assert tensor in quantized(plain)
    assert tensor not in quantized(result)
    (change,) = result.guard.changes
    assert (change.tensor, change.kind) == (tensor, "float")
    assert change.cost == len(change.nodes) == len(result.plan.float_nodes) - len(plain.plan.float_nodes)
    # What the files show: biases and rounded weights are not on the switches that found the change.
    shown = [each.trial.sqnr_db[change.output] for each in (plain, result) if each.trial is not None]
    assert [change.without_db, change.with_db] == shown
    (text,) = [r.message for r in result.remarks if r.source == "guard"]
    assert f"{tensor!r} stays float" in text
    assert f"it costs {change.cost} of {result.guard.integer_nodes} integer nodes" in text
    assert len([r for r in result.remarks if "weight scales" in r.message]) == 1  # of the file that is written
    reasons = dict(result.plan.float_nodes)
    assert "measured" in reasons[change.nodes[0]]


def test_runs_of_heavy_networks_have_fewer_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [relief.affordable_runs(work, 48, 144) for work in (0.0, 0.2, 0.25, 0.5, 10.0)] == [144, 144, 120, 60, 48]
    assert [relief.affordable(work, 48) for work in (0.0, 0.1, 0.2, 0.5, 10.0)] == [8, 8, 6, 2, 2]
    usual = insert(culprits.outlier_channel())
    monkeypatch.setattr(relief, "EXPECTED", 1e-9)
    fewer = insert(culprits.outlier_channel())
    assert [c.tensor for c in changes(fewer)] == [c.tensor for c in changes(usual)] == ["scaled"]


def changes(result: InsertResult) -> tuple[Change, ...]:
    assert result.guard is not None
    return result.guard.changes


def test_a_weight_of_unlike_channels_goes_float_alone() -> None:
    result = insert(culprits.depthwise(), overrides=Overrides(per_channel=False))
    assert result.guard is not None
    assert result.guard.before is not None
    assert result.guard.before.worst < 10
    assert worst(result) > AMBER_SQNR
    assert [q.tensor for q in qdq.quantizers(result.model) if q.tensor == "unlike"] == []


def test_a_range_that_need_not_cover_rare_values_is_cut(tmp_path: Path) -> None:
    table = tmp_path / "widest.yaml"  # of the package's tables none takes the whole range of what was seen
    table.write_text("extends: onnxruntime-cpu\ntypes: {act: {observer: minmax}}\n", encoding="utf-8")
    plain, result = (insert(culprits.rare_values(), str(table), guard=on) for on in (False, True))
    assert result.guard is not None
    assert worst(result) > AMBER_SQNR > worst(plain)
    assert {c.kind for c in result.guard.changes} == {"range"}
    assert result.plan.float_nodes == plain.plan.float_nodes
    scales = [
        {q.tensor: float(q.qparams.scale) for q in qdq.quantizers(r.model) if q.role == "activation"}
        for r in (plain, result)
    ]
    for change in result.guard.changes:
        assert scales[1][change.tensor] < scales[0][change.tensor]


def test_16_bits_come_before_float_where_the_compiler_has_them() -> None:
    plain = insert(culprits.cancelled(), "qnn-htp", guard=False)
    result = insert(culprits.cancelled(), "qnn-htp")
    assert result.guard is not None
    assert worst(result) > AMBER_SQNR > worst(plain)
    assert {c.kind for c in result.guard.changes} == {"16 bits"}
    assert (quantized(plain)["wide"], quantized(result)["wide"]) == (8, 16)
    assert result.plan.float_nodes == plain.plan.float_nodes
    assert [f for f in onnxqat.lint(result.model, "qnn-htp").findings if f.severity == "error"] == []
    assert insert(culprits.cancelled(), "rknn").guard.changes[0].kind == "float"  # type: ignore[union-attr]


def test_nothing_goes_float_that_the_compiler_refuses_in_float(tmp_path: Path) -> None:
    table = tmp_path / "refuses.yaml"
    rows = "limits: [{op: Conv, form: float, outcome: refused, why: no float on this chip}]\n"
    table.write_text(f"extends: rknn\n{rows}", encoding="utf-8")
    assert [c.kind for c in changes(insert(culprits.cancelled(), "rknn"))] == ["float"]
    result = insert(culprits.cancelled(), str(table))
    assert result.guard is None or not result.guard.changes
    assert not [name for name, _ in result.plan.float_nodes]
    assert worst(result) < AMBER_SQNR


def test_what_is_not_finite_goes_float() -> None:
    with pytest.raises(CheckError, match="'angle'"):
        insert(culprits.angles(), guard=False)
    result = insert(culprits.angles())
    assert result.guard is not None
    assert result.guard.before is None
    assert result.guard.changes[0].kind == "float"
    assert "'angle' is not finite" in next(r.message for r in result.remarks if r.source == "guard")
    (values,) = _run(result, culprits.angles()[1])
    assert np.isfinite(values).all()


def _run(result: InsertResult, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    from onnxqat.runtime.session import Session

    return list(Session(result.model, optimize=False).run(feeds).values())


def test_what_is_not_finite_stays_an_error_where_types_are_the_users() -> None:
    with pytest.raises(CheckError) as caught:
        insert(culprits.angles(), overrides=Overrides(weight_bits=8, activation_bits=8))
    assert caught.value.code == "quantized-not-finite"


@pytest.mark.parametrize(
    ("overrides", "option"),
    [
        (Overrides(weight_bits=2, activation_bits=2), "--bits"),
        (Overrides(include=("*",)), "--include"),
        (Overrides(node_bits=(("wide", 8, 8), ("y", 8, 8))), None),
    ],
)
def test_types_that_the_user_asked_for_stay(overrides: Overrides, option: str | None) -> None:
    plain = insert(culprits.cancelled(), overrides=overrides, guard=False)
    result = insert(culprits.cancelled(), overrides=overrides)
    assert result.plan.float_nodes == plain.plan.float_nodes
    assert quantized(result) == quantized(plain)
    assert worst(result) < AMBER_SQNR
    text = [r.message for r in result.remarks if r.source == "guard"][-1]
    assert "is left at" in text
    assert option is None or option in text


def test_an_observer_that_the_user_named_stays() -> None:
    result = insert(culprits.rare_values(), overrides=Overrides(observer="minmax"))
    assert result.guard is not None
    assert "range" not in {c.kind for c in result.guard.changes}


def test_a_model_in_which_everything_is_coarse_keeps_most_of_its_integer_nodes() -> None:
    """Noise of all quantizers together is no culprit: a table of few bits is not made a float model."""
    w = culprits.Writer()
    w.node("Conv", [w.layers("x", count=9), w.constant("last", w.random.standard_normal((4, 8, 1, 1)))], "y")
    made = w.model([3, 8, 8], {"y": [4, 8, 8]}), {"x": culprits.images()}
    plain, result = insert(made, "qnn-htp-w4", guard=False), insert(made, "qnn-htp-w4")
    assert worst(plain) < AMBER_SQNR
    assert result.guard is not None
    more = len(result.plan.float_nodes) - len(plain.plan.float_nodes)
    assert more <= max(result.guard.integer_nodes // 4, 2)
    assert worst(result) >= worst(plain)


@pytest.mark.parametrize("made", [culprits.outlier_channel, culprits.cancelled, culprits.depthwise])
def test_runs_are_bounded_and_the_file_is_the_same_each_time(
    made: Callable[[], culprits.Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = insert(made()), insert(made())
    assert first.guard is not None
    assert first.guard == second.guard
    assert ir.to_proto(first.model).SerializeToString() == ir.to_proto(second.model).SerializeToString()
    assert first.guard.runs <= guarding.RUNS
    monkeypatch.setattr(guarding, "RUNS", 14)
    less = insert(made())
    assert less.guard is not None
    assert less.guard.runs <= 14


def test_nothing_is_done_above_the_floor_and_on_data_that_are_read_once() -> None:
    w = culprits.Writer()
    w.node("Conv", [w.layers("x"), w.constant("last", w.random.standard_normal((4, 8, 1, 1)))], "y")
    model = w.model([3, 8, 8], {"y": [4, 8, 8]})
    assert insert((model, {"x": culprits.images()})).guard is None
    once = iter([{"x": culprits.images()}])
    result = onnxqat.insert_qdq(model, data=once, equalize=False)
    assert (result.guard, result.trial) == (None, None)
    assert "read only once" in next(r.message for r in result.remarks if r.source == "guard")


@pytest.mark.parametrize("backend", ["onnxruntime-cpu", "qnn-htp"])
def test_exact_stays_exact(backend: str) -> None:
    result = insert(culprits.cancelled(), backend, overrides=Overrides(exact=True))
    assert result.guard is not None
    assert worst(result) > AMBER_SQNR
    assert {q.qparams.scale_bits for q in qdq.quantizers(result.model) if q.role == "activation"} == {1}
    assert set(quantized(result).values()) == {8}


def test_quantizers_that_the_file_had_stay() -> None:
    model, data = culprits.cancelled()
    first = insert((model, data), overrides=Overrides(include=("conv0",)))
    result = onnxqat.insert_qdq(first.model, data=data, keep=True)
    assert worst(result) > AMBER_SQNR
    assert {"x", "relu1"} <= set(quantized(result))
    assert "wide" not in quantized(result)


def test_the_report_shows_what_was_changed() -> None:
    result = insert(culprits.cancelled())
    assert result.guard is not None
    report = build.from_insert(result)
    text = terminal.to_text(report)
    assert "What the guard changed" in text
    assert "accuracy  GREEN" in text
    (table,) = [t for t in report.tables if t.key == "guard"]
    assert table.rows[0][:3] == ("wide", "float", "y")
    assert '"guard"' in json.dumps(report)


def test_a_change_that_was_not_measured_is_proven_in_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no run is left for what a change brings beside the others, files with and without it tell."""
    search = Relief.search

    def with_a_useless_change(relief: Relief, *arguments: object) -> list[Change]:
        found = search(relief, *arguments)
        unit = next(u for u in relief._effects.units if relief._effects.tensors[u] == ("relu0",))
        relief._remedies.observe([unit])
        for name, _, choices in relief._remedies.ranges(unit):
            change = Change("relu0", "range", name, (), found[0].output, math.nan)
            relief._parts[unit] = change, choices
        return [*found, change]

    monkeypatch.setattr(Relief, "search", with_a_useless_change)
    result = insert(culprits.outlier_channel())
    assert result.guard is not None
    assert [change.tensor for change in result.guard.changes] == ["scaled"]
    scales = [
        {q.tensor: q.qparams.scale for q in qdq.quantizers(r.model)}["relu0"]
        for r in (result, insert(culprits.outlier_channel(), guard=False))
    ]
    assert scales[0] == scales[1]


def test_fewer_changes_where_all_of_them_together_do_not_help_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those stay that relieve of most: weights that are rounded anew may tell against the others."""
    search = Relief.search

    def with_harmful_ones(relief: Relief, *arguments: object) -> list[Change]:
        found = search(relief, *arguments)
        for number, layer in enumerate(("conv0", "conv1", "conv2")):
            change = Change(layer, "bits", "a width too small", (layer,), found[0].output, math.nan, alone_db=0.0)
            relief._parts[(-1 - number,)] = change, Choices(widths={layer: (4, 4)})
            relief._gained[(-1 - number,)] = 0.0
            found.append(change)
        return found

    monkeypatch.setattr(guarding, "GAIN", 20.0)  # more than layers of 4 bits leave
    monkeypatch.setattr(Relief, "search", with_harmful_ones)
    result = insert(culprits.outlier_channel())
    assert [change.tensor for change in changes(result)] == ["scaled"]
    assert worst(result) > AMBER_SQNR
    assert {q.qparams.qtype.bits for q in qdq.quantizers(result.model) if q.role == "weight"} == {8}


def test_changes_that_lead_to_more_noise_than_before_are_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them helps alone; all of them together may not, and what follows is judged beside them."""
    change_types = Relief._change_types
    seen = []

    def louder(relief: Relief, meter: Meter, batch: dict[Unit, Excess], rest: float, now: Excess) -> Excess:
        change_types(relief, meter, batch, rest, now)
        seen.append(len(relief._parts))
        return dataclasses.replace(now, value=2 * now.value)

    monkeypatch.setattr(Relief, "_change_types", louder)
    result = insert(culprits.outlier_channel(), rounding="nearest")
    assert seen[0] > 0
    assert result.guard is not None
    assert result.guard.changes == ()


def test_changes_with_which_later_ones_help_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise of one quantizer may make up for that of another: without the first alone there is more, without both less."""
    change_types = Relief._change_types
    seen = []

    def louder_at_first(relief: Relief, meter: Meter, batch: dict[Unit, Excess], rest: float, now: Excess) -> Excess:
        found = change_types(relief, meter, batch, rest, now)
        seen.append(len(relief._parts))
        return dataclasses.replace(found, value=2 * now.value) if len(seen) == 1 else found

    monkeypatch.setattr(relief, "BATCH", 1)
    monkeypatch.setattr(Relief, "_change_types", louder_at_first)
    result = insert(culprits.outlier_channel(), rounding="nearest")
    assert len(seen) == 2
    assert [change.tensor for change in changes(result)] == ["scaled"]


def test_gradients_lead_to_a_culprit_that_is_quiet_at_its_own_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    found = insert(culprits.offset())
    assert "level" in {change.tensor for change in changes(found)}
    assert worst(found) > AMBER_SQNR
    monkeypatch.setattr(suspicion, "at_outputs", lambda *_, **__: {})  # as without torch
    without = insert(culprits.offset())
    assert found.guard is not None
    assert without.guard is not None
    assert found.guard.runs < without.guard.runs


@pytest.mark.parametrize(("backend", "kind"), [("tensorrt", "float"), ("qnn-htp", "16 bits")])
def test_what_brings_several_times_its_part_is_relieved_without_a_run(
    backend: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where runs showed nothing, or were used up, gradients tell."""
    monkeypatch.setattr(Relief, "search", lambda *_: [])
    result = insert(culprits.offset(), backend)
    assert [(change.tensor, change.kind) for change in changes(result)] == [("level", kind)]
    assert worst(result) > AMBER_SQNR


def test_what_many_share_stays_quantized_where_float_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Relief, "search", lambda *_: [])
    assert changes(insert(culprits.offset(), "onnxruntime-cpu")) == ()


def test_noise_that_all_quantizers_share_evenly_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Relief, "search", lambda *_: [])
    names = quantized(insert(culprits.offset(), "rknn", guard=False))
    monkeypatch.setattr(suspicion, "at_outputs", lambda *_, **__: dict.fromkeys(names, 1.0))
    assert changes(insert(culprits.offset(), "rknn")) == ()


def test_noise_of_scores_beside_large_boxes_counts_apart() -> None:
    w = culprits.Writer()
    x = w.layers("x")
    names = [w.constant(name, w.random.standard_normal((4, 8, 1, 1)) * size) for name, size in (("a", 30), ("b", 0.3))]
    boxes = w.node("Conv", [x, names[0]], "boxes")
    w.node("Concat", [boxes, w.node("Sigmoid", [w.node("Conv", [x, names[1]], "logits")], "scores")], "y", axis=1)
    model = onnx.shape_inference.infer_shapes(w.model([3, 8, 8], {"y": [8, 8, 8]}))
    data = {"x": culprits.images()}
    file, original = insert((model, data), "qnn-htp", guard=False, rounding="nearest").model, ir.from_proto(model)
    samples = open_data(data, of_graph(original.graph))
    ask = functools.partial(suspicion.at_outputs, file, original, samples, trial.Trial(8, {"y": 60.0}))
    whole, parts = ask(), ask(by_parts=True)
    assert parts["scores"] > 100 * whole["scores"]
    assert parts["boxes"] == pytest.approx(whole["boxes"], rel=0.1)


def test_gradients_that_explain_little_of_the_noise_say_nothing() -> None:
    """Behind an index that comes out otherwise, what they expect is next to nothing, and no order to look in."""
    found = [insert(made(), guard=False).trial for made in (culprits.flipped, culprits.offset)]
    assert all(trial is not None and trial.worst < AMBER_SQNR for trial in found)
    assert [trial.costly_at for trial in found if trial is not None] == ["tensors", "outputs"]


def test_a_file_is_made_although_what_costs_most_cannot_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tensors as outputs can be more than onnxruntime holds."""

    def refuses(*_: object) -> None:
        raise ModelError("model-not-runnable", "no memory for these outputs")

    monkeypatch.setattr(trial, "rounded", refuses)
    made = insert(culprits.flipped(), guard=False)
    assert made.trial is not None
    assert made.trial.worst < AMBER_SQNR
    assert made.trial.costly == ()


def test_changes_together_may_quantize_what_none_of_them_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Clip left float lays the layer in front of it bare, and 16 bits for that layer want another observer there."""
    rounds: list[Relief] = []
    search = Relief.search

    def seen(self: Relief, *arguments: object) -> list[Change]:
        rounds.append(self)
        return search(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Relief, "search", seen)
    insert(culprits.cancelled(), "qnn-htp")
    remedies = rounds[0]._remedies
    effect = remedies.effect(NONE, NONE)
    spec = next(
        e.decision for e in effect.plan.edges if isinstance(e.decision, TensorSpec) and e.decision.role != "weight"
    )
    for observer in ("mse", "minmax"):
        wanted = dataclasses.replace(effect, unseen={"conv0": dataclasses.replace(spec, observer=observer)})
        assert remedies.observed(wanted, NONE).seen["conv0"].spec.observer == observer
    together = remedies.leave(["relu0"], NONE, "test", "relu0")
    assert together is not None
    rounds[0]._parts = {(0,): (together[0], dataclasses.replace(together[1], seen={}))}
    assert rounds[0].choices.seen.keys() == together[1].seen.keys() == {"conv0"}
