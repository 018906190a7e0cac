"""One file for several targets: a bundle for each, one matrix, and what cannot be done is a row."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import pytest

from onnxqat.cli import main
from onnxqat.deployment import base_compiler
from onnxqat.deployment import handoff as module
from onnxqat.deployment.base_compiler import CompilerResult
from onnxqat.deployment.handoff_all import every_backend, handoff_all
from onnxqat.errors import CheckError, UsageError
from onnxqat.report import build_handoff_all, terminal
from tests.validation import tiny

DATA = {"image": tiny.images(4)}
SCHEMA = Path(__file__).parents[2] / "docs" / "schemas" / "handoff_matrix.json"
TYPES = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool}


@pytest.fixture(scope="module")
def quantized() -> onnx.ModelProto:
    return tiny.pair()[1]


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No compiler with an environment; the others compile in this process, as what the worker does is tested elsewhere."""
    monkeypatch.setenv("ONNXQAT_ENVIRONMENTS", str(tmp_path / "environments"))

    def here(compiler: Any, path: Path, batches: Any, **rest: Any) -> CompilerResult:
        found: CompilerResult = compiler.compile_and_run(path, batches, rest.get("artefacts"))
        return found

    monkeypatch.setattr(module, "compile_in_process", here)


def check(value: Any, schema: Mapping[str, Any], at: str = "matrix") -> None:
    """Hold `value` against the keywords that the published schema uses."""
    if "enum" in schema or "const" in schema:
        assert value in schema.get("enum", [schema.get("const")]), at
        return
    kinds = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    assert (value is None and "null" in kinds) or any(isinstance(value, TYPES[k]) for k in kinds if k != "null"), at
    if isinstance(value, dict):
        known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
        assert set(schema.get("required", ())) <= set(value), at
        for key, inner in value.items():
            assert key in known or others, f"{at}.{key}"
            if key in known or isinstance(others, dict):
                check(inner, known.get(key, others), f"{at}.{key}")
    for index, inner in enumerate(value if isinstance(value, list) else ()):
        check(inner, schema["items"], f"{at}[{index}]")


def test_matrix_of_two_compilers_and_one_that_is_missing(quantized: onnx.ModelProto, tmp_path: Path) -> None:
    done: list[tuple[int, int | None]] = []
    folder = tmp_path / "bundles"
    names = ["onnxruntime-cpu", "onnxruntime-cpu-s8", "imx500"]
    matrix = handoff_all(quantized, folder, names, data=DATA, trace=False, progress=lambda *s: done.append(s))
    assert done == [(1, 3), (2, 3), (3, 3)]
    first, second, missing = matrix.targets
    assert (first.status, first.accepted, first.install) == ("amber", True, "")  # its accuracy is not judged
    assert first.integer == first.heavy > 0
    assert second.compiler == "onnxruntime-cpu"
    assert (missing.accepted, missing.version) == (None, None)
    assert missing.install == base_compiler.load("imx500").missing().hint
    for name in names:
        assert (folder / name / "manifest.json").is_file()
    row = next(row for row in matrix.nodes if row.op_type == "Conv")
    assert set(row.runs) == {"onnxruntime-cpu", "onnxruntime-cpu-s8"}
    assert row.runs["onnxruntime-cpu"] == "integer"
    assert row.kernels["onnxruntime-cpu"] == "QLinearConv"
    written = json.loads((folder / "matrix.json").read_text(encoding="utf-8"))
    assert written == json.loads(json.dumps(matrix.to_dict()))
    check(written, json.loads(SCHEMA.read_text(encoding="utf-8")))


def test_report_shows_a_column_for_each_compiler(
    quantized: onnx.ModelProto, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    matrix = handoff_all(quantized, tmp_path / "b", ["onnxruntime-cpu", "imx500"], data=DATA, trace=False)
    report = build_handoff_all.from_matrix(matrix)
    nodes = next(table for table in report.tables if table.key == "matrix")
    assert [column.key for column in nodes.columns] == ["name", "op_type", "onnxruntime-cpu"]
    assert any("integers" in row for row in nodes.rows)
    terminal.show(report)
    assert "not installed: onnxqat handoff --install imx500" in capsys.readouterr().out


def test_a_refusal_is_a_row(quantized: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(compiler: Any, *_: Any, **__: Any) -> CompilerResult:
        raise CheckError("handoff-failed", f"{compiler.name} refused the model: node 'a'", hint="leave it in float")

    monkeypatch.setattr(module, "compile_in_process", refuse)
    matrix = handoff_all(quantized, tmp_path / "bundles", ["onnxruntime-cpu"], data=DATA)
    (target,) = matrix.targets
    assert (target.status, target.accepted, target.remedy) == ("red", False, "leave it in float")
    assert matrix.passed is False
    assert not (tmp_path / "bundles" / "onnxruntime-cpu").exists()


def test_what_is_refused(quantized: onnx.ModelProto, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="twice"):
        handoff_all(quantized, tmp_path / "b", ["imx500", "imx500"], data=DATA)
    module.handoff(quantized, "imx500", tmp_path / "bundle", data=DATA)
    with pytest.raises(UsageError, match="is a bundle"):
        handoff_all(quantized, tmp_path / "bundle", ["imx500"], data=DATA)


def test_one_table_for_each_compiler() -> None:
    chosen = every_backend("qnn-htp-a16")
    assert {"onnxruntime-cpu", "openvino-cpu", "tensorrt", "qnn-htp-a16", "rknn", "imx500"} <= set(chosen)
    assert "qnn-htp" not in chosen


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--backend"),
        (("--all", "--backend", "rknn"), "exclude"),
        (("--backend", "rknn", "--backend", "imx500", "--compiler", "tract"), "one target"),
    ],
)
def test_options_that_contradict(
    arguments: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["handoff", "model.onnx", "-o", str(tmp_path / "b"), *arguments]) == 2
    assert said in capsys.readouterr().err


def test_worst_target_decides_about_the_status(
    quantized: onnx.ModelProto, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "model.qdq.onnx"
    onnx.save(quantized, model)
    arguments = ["handoff", str(model), "-o", str(tmp_path / "b"), "--limit", "2", "--no-trace", "--json"]
    status = main.run([*arguments, "--backend", "onnxruntime-cpu", "--backend", "onnxruntime-cpu-s8", "--threads", "1"])
    found = json.loads(capsys.readouterr().out)
    targets = found["details"]["matrix"]["targets"]
    assert found["kind"] == "handoff_matrix"
    assert [target["settings"] for target in targets] == [{"threads": "1"}] * 2
    assert status == (1 if any(target["status"] == "red" for target in targets) else 0)
