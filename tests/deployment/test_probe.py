"""One-operator models are what their tables say, and what is learned from them is told beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxqat.backends import schema
from onnxqat.backends.schema import TypeRow
from onnxqat.deployment import probe as module
from onnxqat.deployment import probe_models, probe_table
from onnxqat.deployment.base_compiler import HEAVY, CompilerResult
from onnxqat.deployment.compilers import onnxruntime_cpu
from onnxqat.deployment.probe import Learned, probe
from onnxqat.deployment.probe_models import CASES
from onnxqat.deployment.run.process import CompilerStopError
from onnxqat.errors import CheckError, UsageError
from onnxqat.graph import io, qdq
from onnxqat.report import build_probe, terminal
from onnxqat.runtime.session import Session

U8 = TypeRow(dtype="uint8", symmetric=False)
S8 = TypeRow(dtype="int8")
WEIGHT = TypeRow(dtype="int8", granularity="channel")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile in this process: what the worker does is tested elsewhere."""

    def here(compiler: Any, path: Path, batches: Any, **_: Any) -> CompilerResult:
        found: CompilerResult = compiler.compile_and_run(path, batches)
        return found

    monkeypatch.setattr(module, "compile_in_process", here)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_models_run_and_carry_a_pair_on_every_side(case: probe_models.Case) -> None:
    for act in (U8, S8):
        model = probe_models.quantized(case, act, WEIGHT)
        onnx.checker.check_model(model, full_check=True)
        loaded = io.load(model)
        found = qdq.quantizers(loaded)
        assert sum(q.role == "activation" for q in found) == len(case.shapes) + case.outputs
        assert sum(q.role == "weight" for q in found) == len(case.weights)
        assert {q.qparams.qtype.storage for q in found if q.role == "activation"} == {act.dtype}
        feeds = probe_models.feeds(case)
        outputs = Session(loaded, optimize=False).run(feeds)
        assert all(np.isfinite(v).all() and np.ptp(v) > 0 for v in outputs.values())


def test_every_operator_of_every_table_has_a_case() -> None:
    known = {case.name for case in CASES} | {case.op_type for case in CASES}
    for name in schema.names():
        table = schema.load(name)
        assert {*table.ops, *table.passthrough} <= known, name


def test_biases_follow_the_table() -> None:
    case = next(c for c in CASES if c.name == "Conv")
    plain = probe_models.quantized(case, S8, WEIGHT, TypeRow(dtype="float", derive="in0*in1"))
    stored = probe_models.quantized(case, S8, WEIGHT, TypeRow(dtype="int32", derive="in0*in1"))
    assert sum(n.op_type == "DequantizeLinear" for n in stored.graph.node) == 4
    assert sum(n.op_type == "DequantizeLinear" for n in plain.graph.node) == 3


def test_onnxruntime_beside_its_table(quick: None) -> None:
    report = probe("onnxruntime-cpu", only=("Conv", "Conv+Relu", "Conv+HardSwish", "Sub", "Reshape", "Relu"))
    rows = {r.name: r for r in report.rows}
    assert {n: (r.table, r.outcome) for n, r in rows.items()} == {
        "Conv": ("quantized", "integer"),
        "Conv+Relu": ("fused", "integer"),
        "Conv+HardSwish": ("float", "float"),
        "Sub": ("float", "float"),
        "Reshape": ("passed", "moved"),
        "Relu": ("float", "moved"),
    }
    assert all(r.steps is not None and r.steps <= 1 for r in report.rows)
    assert report.differences == ()
    text = terminal.to_text(build_probe.from_probe(report))
    assert "QLinearConv" in text
    assert report.to_dict()["rows"][0]["difference"] == ""


def test_a_table_that_is_wrong_is_told(quick: None, tmp_path: Path) -> None:
    table = tmp_path / "mine.yaml"
    text = (
        "schema: 1\nbackend: mine\nextends: onnxruntime-cpu\nops:\n  Sub: {in: [act, act], out: [act]}\n  Add: null\n"
    )
    table.write_text(text, encoding="utf-8")
    report = probe("onnxruntime-cpu", str(table), only=("Sub", "Add"))
    parted = {r.name: r.difference for r in report.differences}
    assert parted == {
        "Add": "the compiler has it on integers, the table leaves it float",
        "Sub": "the table has it quantized, the compiler has it float",
    }
    assert "Where the table of mine and the compiler part" in terminal.to_text(build_probe.from_probe(report))


def test_a_refusal_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> CompilerResult:
        raise CheckError("handoff-failed", "onnxruntime-cpu refused the model: not today")

    monkeypatch.setattr(module, "compile_in_process", refuse)
    row = probe("onnxruntime-cpu", only=("Conv",)).rows[0]
    assert (row.outcome, row.steps) == ("refused", None)
    assert "not today" in row.detail
    assert row.difference == "the table has it quantized, the compiler has it refused"


def test_numbers_that_are_off_are_told() -> None:
    assert Learned("Conv", "quantized", "integer", "QLinearConv", 129.0).difference == "its numbers are 129 steps off"
    assert Learned("Conv", "quantized", "integer", "QLinearConv", float("nan")).difference
    assert Learned("Conv", "quantized", "integer", "QLinearConv", None).difference == ""


def test_bad_names_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ONNXQAT_ENVIRONMENTS", str(tmp_path))
    with pytest.raises(UsageError) as unknown:
        probe("tensor-rt")
    assert unknown.value.code == "name-unknown"
    with pytest.raises(UsageError) as homeless:
        probe("tract")
    assert "no backend table belongs to tract" in homeless.value.message
    with pytest.raises(UsageError) as missing:
        probe("tract", "onnxruntime-cpu")
    assert "onnxqat handoff --install tract" in missing.value.hint
    with pytest.raises(UsageError) as case:
        probe("onnxruntime-cpu", only=("Konv",))
    assert case.value.code == "name-unknown"


def test_the_kernels_that_onnxruntime_is_said_to_have_are_those_that_it_has(quick: None) -> None:
    heavy = tuple(case.name for case in CASES if case.op_type in HEAVY and not case.then)
    learned = {r.name.partition("/")[0] for r in probe("onnxruntime-cpu", only=heavy).rows if r.integer}
    assert learned == set(HEAVY) & set(onnxruntime_cpu.Compiler.integer_kernels.split())


def test_types_are_those_of_the_operators_row() -> None:
    table = schema.load("openvino-cpu")
    types = {c.name: module._types(table, c)[0] for c in CASES}
    assert types["Conv"].dtype == "uint8"
    assert types["Tanh"] is types["Conv"]
    transposed = table.ops["ConvTranspose"].inputs[0].use
    assert transposed is not None
    assert types["ConvTranspose"] == table.types[transposed]


def test_a_draft_states_where_the_compiler_parts(quick: None, tmp_path: Path) -> None:
    mine, written = tmp_path / "mine.yaml", tmp_path / "draft.yaml"
    text = (
        "schema: 1\nbackend: mine\nextends: onnxruntime-cpu\nops:\n  Sub: {in: [act, act], out: [act]}\n  Add: null\n"
    )
    mine.write_text(text + "  Sigmoid: null\n", encoding="utf-8")
    report = probe("onnxruntime-cpu", str(mine), only=("Sub", "Add", "Sigmoid", "Conv", "Reshape"))
    written.write_text(probe_table.draft(report, str(mine)), encoding="utf-8")
    drafted, wanted = schema.load(str(written)), schema.load("onnxruntime-cpu")
    assert set(drafted.ops) == set(wanted.ops)
    assert drafted.ops["Add"].inputs == wanted.ops["Add"].inputs
    assert drafted.passthrough == wanted.passthrough
    assert drafted.facts["ops.Add"].status == "run"
    assert "QLinearAdd" in drafted.facts["ops.Add"].source
    again = probe("onnxruntime-cpu", str(written), only=("Sub", "Add", "Sigmoid", "Conv", "Reshape"))
    assert again.differences == ()


STOPS = {"Gelu": "crash", "Erf": "hang", "Sin": "refused"}


def test_what_stops_a_compiler_becomes_limits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Gelu crashes it between pairs and in float, Erf in float alone; Sin, and then Cos, are refused between pairs."""

    def stop(compiler: Any, path: Path, *_: Any, **__: Any) -> CompilerResult:
        model = onnx.load(path)
        [operator] = {n.op_type for n in model.graph.node} & {"Gelu", "Erf", "Sin", "Cos"}
        alone = any(n.name == "beside_probed" for n in model.graph.node)
        if (operator in ("Sin", "Cos") and alone) or (operator == "Erf" and not alone):
            found: CompilerResult = compiler.compile_and_run(path, [])
            return found
        outcome = STOPS.get(operator, "refused")
        raise CompilerStopError("handoff-failed", f"no  {outcome}\nhere", outcome=outcome)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "compile_in_process", stop)
    report = probe("onnxruntime-cpu", only=("Gelu", "Erf", "Sin", "Cos"), in_float=True)
    path = tmp_path / "draft.yaml"
    path.write_text(probe_table.draft(report), encoding="utf-8")
    limits = schema.load(str(path)).limits
    assert [(limit.op, limit.outcome, limit.form, limit.why) for limit in limits] == [
        ("Gelu", "crash", "any", "no crash here"),
        ("Erf", "hang", "float", "no hang here"),
        ("Sin|Cos", "refused", "quantized", "no refused here"),
    ]


@pytest.mark.parametrize("case", [c for c in CASES if not c.then], ids=lambda case: case.name)
def test_operators_in_float_stand_beside_a_quantized_convolution(case: probe_models.Case) -> None:
    model = probe_models.in_float(case, U8, WEIGHT)
    onnx.checker.check_model(model, full_check=True)
    loaded = io.load(model)
    assert {q.role for q in qdq.quantizers(loaded)} == {"activation", "weight"}
    outputs = Session(loaded, optimize=False).run(probe_models.feeds_beside(case))
    assert len(outputs) == case.outputs + 1
