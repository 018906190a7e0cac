"""Each command's result becomes a report that ends with what was written, what stays float, and what to run next."""

from __future__ import annotations

import dataclasses
import json
import types
from pathlib import Path

import numpy as np
import pytest

from onnxqat.deployment.handoff import handoff
from onnxqat.insertion.insert import InsertResult
from onnxqat.numerics import from_range
from onnxqat.report import build, build_handoff, build_validation, html, terminal
from onnxqat.report import json as as_json
from onnxqat.report.model import Report
from onnxqat.types import Derived, Edge, Fixed, Float, QType, QuantPlan, Remark, Scheme, Shared, TensorSpec
from onnxqat.validation.result import ValidationReport
from onnxqat.validation.validate import validate
from onnxqat.verdict import Verdict
from tests.validation import tiny

U8 = QType.of(8, signed=False)


def all_views(report: Report) -> str:
    """Every view is made; the text is returned."""
    html.to_html(report)
    json.loads(as_json.dumps(report))
    return terminal.to_text(report)


@pytest.fixture(scope="module")
def validated(tmp_path_factory: pytest.TempPathFactory) -> ValidationReport:
    paths = tiny.save_pair(tmp_path_factory.mktemp("pair"))
    return validate(*paths, {"image": tiny.images(6)}, use_torch=False)


def inserted() -> InsertResult:
    fixed = from_range(np.float32(0), np.float32(1), Scheme(U8, symmetric=False))
    edges = (
        Edge("x", TensorSpec(U8, symmetric=False), "Conv input"),
        Edge("y", Shared("x"), "tie io", (("Flatten_1", 0),)),
        Edge("p", Fixed(fixed), "Softmax output"),
        Edge("b", Derived("x", "w"), "bias"),
        Edge("w", TensorSpec(QType.of(4, signed=True), granularity="channel", axis=0, role="weight"), "Conv weight"),
        Edge("i", Float("integer tensor"), "never"),
    )
    plan = QuantPlan("onnxruntime-cpu", edges, float_nodes=(("Erf_3", "no integer kernel"),))
    counts = {"activation": 3, "weight": 1, "bias": 1}
    return InsertResult(Path("my model.qdq.onnx"), plan, (Remark("the tensor 't' never held a value"),), counts)


def test_insert_explains_every_edge() -> None:
    text = all_views(build.from_insert(inserted(), explain=True, source="my model.onnx"))
    assert "activation, uint8 8 bit asymmetric per tensor, minmax" in text
    assert "weight, int8 4 bit symmetric per channel, axis 0, minmax" in text
    assert "shares parameters with x" in text
    assert "bias, int32: scale of x times scale of w" in text
    assert "float: integer tensor" in text
    assert "Flatten_1[0]" in text
    assert "no integer kernel: Erf_3" in text
    assert text.splitlines()[-1].startswith(
        "  onnxqat finetune 'my model.qdq.onnx' --data DATA --teacher 'my model.onnx'"
    )
    assert "Why each tensor" not in all_views(build.from_insert(inserted()))


def test_where_nothing_is_quantized_there_is_nothing_to_train() -> None:
    nothing = dataclasses.replace(inserted(), quantizers={"activation": 0, "weight": 0, "bias": 0})
    report = build.from_insert(nothing, source="m.onnx")
    assert report.next_command == "onnxqat lint m.onnx --backend onnxruntime-cpu"


def test_validation_shows_the_worst_tensors_first(validated: ValidationReport) -> None:
    report = build_validation.from_validation(validated)
    text = all_views(report)
    assert report.passed
    tensors = next(t for t in report.tables if t.key == "tensors")
    noise = [row[1] for row in tensors.rows]
    assert noise == sorted(noise)  # type: ignore[type-var]
    assert "agreement with the float model" in text
    assert [v.name for v in report.verdicts] == ["parity", "accuracy", "deployment"]
    assert report.next_command.endswith("-o bundle/")


def test_failed_validation_says_why_and_names_another_command(validated: ValidationReport) -> None:
    red = Verdict("accuracy", "red", "3.0 dB against the float model", "onnxqat finetune model.qdq.onnx --data DATA")
    bad = dataclasses.replace(validated, failures=(red.reason,), verdicts=(validated.verdicts[0], red))
    report = build_validation.from_validation(bad)
    text = all_views(report)
    assert not report.passed
    assert "3.0 dB against the float model" in text
    assert report.next_command == red.remedy


def test_handoff_lists_files_coverage_and_float_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "onnxqat.deployment.handoff.compile_in_process",
        lambda compiler, path, batches, **rest: compiler.compile_and_run(path, batches, rest.get("artefacts")),
    )
    done = handoff(tiny.pair(symmetric=True)[1], "onnxruntime-cpu", tmp_path / "bundle", data={"image": tiny.images(4)})
    report = build_handoff.from_handoff(done)
    text = all_views(report)
    assert str(tmp_path / "bundle" / "model.onnx") in text
    coverage = next(t for t in report.tables if t.key == "coverage")
    assert ("Conv", 0, 2, 0.0) in coverage.rows
    assert "onnxruntime-cpu runs it as FusedConv: the Relu 'Relu_relu1' stands between it and Q: Conv_conv1" in text


def test_finetune_is_taken_as_it_comes() -> None:
    result = types.SimpleNamespace(model="tuned.qdq.onnx", steps=20, losses=[2.0, 1.0], best_score=None, seconds=3.5)
    text = all_views(build.from_finetune(result, following="onnxqat validate float.onnx tuned.qdq.onnx --data DATA"))
    assert "onnxqat validate float.onnx tuned.qdq.onnx --data DATA" in text
    assert "loss of the last epoch" in text
    assert "best" not in text
    assert "Fine-tuned" in all_views(build.from_finetune(types.SimpleNamespace()))


def test_demo_table() -> None:
    rows = [
        {"state": "float", "top1": 0.97, "sqnr_db": None, "bytes": 1000},
        {"state": "tuned", "top1": 0.96, "sqnr_db": 31.0, "bytes": 260},
    ]
    text = all_views(build.from_demo(rows, files=("demo/model.onnx",)))
    assert "97.00%" in text
    assert "31.0 dB" in text
    assert all_views(build.from_demo([])).startswith("The whole way")


def test_the_html_view_is_a_file_of_the_report() -> None:
    assert build.with_files(Report("x", "X", files=("a",)), "b").files == ("a", "b")
