"""The commands that look at a file: lint, explain, diff."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tests.linting.cases import GENERAL
from tests.linting.qdq_files import changed, model

Run = Callable[..., Any]
UNUSED = next(case for case in GENERAL if case.code == "quantize-unused")


def test_lint_of_a_clean_file(qdq: Path, onnxqat: Run) -> None:
    done = onnxqat("lint", qdq, "--backend", "onnxruntime-cpu")
    assert done.status == 0, done.err
    assert "passed" in done.out
    assert "Findings" not in done.out


def test_lint_fails_on_errors_alone(folder: Path, onnxqat: Run) -> None:
    onnx.save(changed(s=np.float32(0)), "bad.onnx")
    done = onnxqat("lint", "bad.onnx")
    assert done.status == 1
    assert "scale-zero" in done.out
    onnx.save(UNUSED.bad(), "warned.onnx")
    done = onnxqat("lint", "warned.onnx")
    assert done.status == 0
    assert "quantize-unused" in done.out
    assert "onnxqat lint warned.onnx --fix" in done.out


def test_lint_json(folder: Path, onnxqat: Run) -> None:
    onnx.save(UNUSED.bad(), "warned.onnx")
    done = onnxqat("lint", "warned.onnx", "--json")
    assert done.status == 0
    (finding,) = done.json["tables"]["findings"]
    assert (finding["severity"], finding["code"], finding["fixable"]) == ("warning", "quantize-unused", True)
    assert done.json == onnxqat("lint", "warned.onnx", "--format", "json").json


def test_lint_sarif(folder: Path, onnxqat: Run) -> None:
    onnx.save(changed(s=np.float32(0)), "bad.onnx")
    done = onnxqat("lint", "bad.onnx", "--format", "sarif")
    assert done.status == 1
    log = json.loads(done.out)
    assert log["version"] == "2.1.0"
    assert any(result["ruleId"] == "scale-zero" for result in log["runs"][0]["results"])


def test_lint_fix(folder: Path, onnxqat: Run) -> None:
    onnx.save(UNUSED.bad(), "warned.onnx")
    done = onnxqat("lint", "warned.onnx", "--fix", "-o", "new.onnx")
    assert done.status == 0
    assert "quantize-unused (1)" in done.out
    assert onnxqat("lint", "new.onnx", "--json").json["figures"]["warnings"] == 0


def test_lint_before_calibration(folder: Path, onnxqat: Run) -> None:
    done = onnxqat("lint", "model.onnx", "--backend", "tensorrt-nlp")
    assert done.status == 0
    assert "Conv runs in float: tensorrt-nlp has no row for Conv" in done.out
    assert "--backend for the pre-flight" in onnxqat("lint", "model.onnx").out


def test_usage(folder: Path, onnxqat: Run) -> None:
    assert onnxqat("lint", "model.onnx", "-o", "new.onnx").status == 2
    assert onnxqat("lint", "model.onnx", "--json", "--format", "sarif").status == 2
    assert onnxqat("lint", "model.onnx", "--backend", "nobody").status == 2
    assert onnxqat("explain", "model.onnx", "--node", "nobody").status == 2
    assert onnxqat("diff", "model.onnx", "missing.onnx").status == 2


def test_explain(qdq: Path, onnxqat: Run) -> None:
    done = onnxqat("explain", qdq, "--backend", "onnxruntime-cpu")
    assert done.status == 0, done.err
    assert "Conv output behind its activation" in done.out
    around = onnxqat("explain", qdq, "--node", "head", "--json").json
    assert [pair["tensor"] for pair in around["tables"]["pairs"]] == ["f", "v", "c"]


def test_diff(folder: Path, onnxqat: Run) -> None:
    onnx.save(model(), "a.onnx")
    onnx.save(changed(rs=np.float32(0.125)), "b.onnx")
    done = onnxqat("diff", "a.onnx", "b.onnx", "--json")
    assert done.status == 0
    (pair,) = done.json["tables"]["pairs"]
    assert (pair["tensor"], pair["change"], pair["ratio_min"]) == ("r", "scale", 2.0)
    assert onnxqat("diff", "a.onnx", "b.onnx", "--exit-code").status == 1
    assert onnxqat("diff", "a.onnx", "a.onnx", "--exit-code").status == 0


def test_html(folder: Path, onnxqat: Run) -> None:
    onnx.save(UNUSED.bad(), "warned.onnx")
    onnxqat("lint", "warned.onnx", "--html", "lint.html")
    assert "quantize-unused" in Path("lint.html").read_text(encoding="utf-8")
