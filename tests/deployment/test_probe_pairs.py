"""Pairs of operators are placed by the table, compiled beside their parts, and become rows of a table."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import onnx
import pytest

from onnxqat.backends import schema
from onnxqat.deployment import probe_models, probe_pairs_table
from onnxqat.deployment import probe_pairs as module
from onnxqat.deployment.probe_pairs import PAIRS, LearnedPair, PairReport, feeds, float_model, name_of, probe_pairs
from onnxqat.errors import UsageError
from onnxqat.graph import io
from onnxqat.report import build_probe, terminal
from onnxqat.runtime.session import Session


@pytest.mark.parametrize("pair", PAIRS, ids=name_of)
def test_pairs_are_models_in_which_the_second_reads_the_first(pair: tuple[probe_models.Case, ...]) -> None:
    model = float_model(pair)
    onnx.checker.check_model(model, full_check=True)
    first, second = (next(n for n in model.graph.node if n.name == f"{p}probed") for p in ("first_", "second_"))
    assert second.input[0] == first.output[0]
    assert Session(io.load(model), optimize=False).run(feeds(pair, seed=1))


def test_names_of_pairs_are_their_own() -> None:
    assert len({name_of(pair) for pair in PAIRS}) == len(PAIRS)


def test_onnxruntime_runs_a_pair_as_its_parts() -> None:
    report = probe_pairs("onnxruntime-cpu", only=["Conv->Relu"])
    (row,) = report.rows
    assert row.alone[0] == row.together[0] == "integer"
    assert row.steps is not None
    assert row.steps <= 1.01
    assert report.differences == ()
    assert report.to_dict()["rows"][0]["difference"] == ""


def test_what_the_table_refuses_is_told(tmp_path: Path) -> None:
    """The compiler is not asked about a pair at which insert-qdq stops, and each part alone goes through."""
    table = tmp_path / "mine.yaml"
    text = "schema: 1\nbackend: mine\nextends: onnxruntime-cpu\nlimits:\n"
    table.write_text(text + "  - {op: Relu, behind: Conv, outcome: refused, why: not here}\n", encoding="utf-8")
    (row,) = probe_pairs("onnxruntime-cpu", str(table), only=["Conv->Relu"]).rows
    assert row.told
    assert row.together == ("refused", "refused")
    assert "Relu behind Conv: not here" in row.detail
    assert row.alone[0] == "integer"
    assert row.difference == ""


def test_an_operator_of_a_newer_opset_than_the_target_reads_is_a_row(tmp_path: Path) -> None:
    table = tmp_path / "older.yaml"
    table.write_text("schema: 1\nbackend: older\nextends: onnxruntime-cpu\nopset: [13, 16]\n", encoding="utf-8")
    (row,) = probe_pairs("onnxruntime-cpu", str(table), only=["LayerNormalization->MatMul"]).rows
    assert row.alone == ("refused", "integer")
    assert row.together == ("refused", "refused")
    assert row.detail.endswith("this model needs 17 for 'first_probed' (LayerNormalization)")


def test_bad_names_are_refused() -> None:
    with pytest.raises(UsageError, match="Conv->Nothing"):
        probe_pairs("onnxruntime-cpu", only=["Conv->Nothing"])


BOTH = ("integer", "integer")
LEARNED = (
    LearnedPair("Conv->Add", BOTH, BOTH, "fine", steps=1.0),
    LearnedPair("Softmax->MatMul/computed", BOTH, ("integer", "float"), "gemm_f32: no kernel"),
    LearnedPair("Concat->Conv", BOTH, ("crash", "crash"), "signal\n11"),
    LearnedPair("MaxPool->Conv", BOTH, ("crash", "crash"), "signal 11"),
    LearnedPair("Conv->Resize/linear", BOTH, ("integer", "rejected"), "on the CPU"),
    LearnedPair("Add->Relu", BOTH, BOTH, "fine", steps=40.0, steps_alone=1.0),
    LearnedPair("Sigmoid->Conv", BOTH, ("float", "integer"), "exp_f32"),
)


def test_a_draft_states_the_pairs_that_part(tmp_path: Path) -> None:
    report = PairReport("openvino-cpu", "1.0", "onnxruntime-cpu", LEARNED)
    assert [row.name for row in report.differences] == [row.name for row in LEARNED[1:]]
    text = probe_pairs_table.draft(report)
    path = tmp_path / "draft.yaml"
    path.write_text(text, encoding="utf-8")
    drafted, probed = schema.load(str(path)), schema.load("onnxruntime-cpu")
    assert drafted.ops["MatMul"].not_behind == ("Softmax",)
    assert drafted.ops["MatMul"].inputs == probed.ops["MatMul"].inputs
    assert [(limit.op, limit.behind, limit.outcome) for limit in drafted.limits] == [
        ("Conv", "Concat|MaxPool", "crash"),
        ("Resize", "Conv", "cpu"),
    ]
    assert drafted.facts["limits"].status == "run"
    comments = [line for line in text.splitlines() if line.startswith("# ")]
    assert [line.split(": ")[0] for line in comments] == ["# Add->Relu", "# Sigmoid->Conv"]
    shown = terminal.to_text(build_probe.from_pairs(report))
    assert "Resize/linear runs integer alone, and rejected here" in shown
    assert "its numbers are 40 steps off" in shown


def test_a_pair_that_is_off_as_its_parts_are_is_no_difference() -> None:
    off = LearnedPair("Conv->Add", BOTH, BOTH, "", steps=9.0, steps_alone=9.0)
    assert off.difference == ""
    assert module.STEEP_LIMIT < 9.0


def test_one_code_that_a_steep_operator_stretches_is_no_difference() -> None:
    steep = LearnedPair("MatMul/computed->Softmax", BOTH, BOTH, "", steps=4.0, steps_alone=1.0)
    assert steep.difference == ""
    assert dataclasses.replace(steep, steps=9.0).difference == "its numbers are 9 steps off"
