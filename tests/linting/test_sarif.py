"""SARIF 2.1.0: what the standard requires, and that each result points at its rule."""

import json
from pathlib import Path

import onnx
import pytest

from onnxqat.linting import sarif
from onnxqat.linting.lint import lint
from tests.linting.cases import GENERAL
from tests.linting.qdq_files import model

LEVELS = {"none", "note", "warning", "error"}


@pytest.mark.parametrize("case", GENERAL[::6], ids=lambda case: case.code)
def test_structure(case: object, tmp_path: Path) -> None:
    path = tmp_path / "a model.onnx"
    onnx.save(case.bad(), path)  # type: ignore[attr-defined]
    report = lint(path)
    log = json.loads(sarif.dumps(report))
    assert log["version"] == "2.1.0"
    assert log["$schema"].endswith("sarif-2.1.0.json")
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "onnxqat"
    rules = driver["rules"]
    assert len({rule["id"] for rule in rules}) == len(rules)
    assert len(run["results"]) == len(report.findings) >= 1
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in LEVELS
        assert result["message"]["text"]
        (location,) = result["locations"]
        assert location["physicalLocation"]["artifactLocation"]["uri"] == path.as_uri()
        assert all(entry["name"] for entry in location.get("logicalLocations", ()))
    for rule in rules:
        assert rule["defaultConfiguration"]["level"] in LEVELS
        assert rule["shortDescription"]["text"]
        assert rule["help"]["text"]


def test_a_relative_path_is_a_relative_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(GENERAL[0].bad(), tmp_path / "a b.onnx")
    (run,) = sarif.to_sarif(lint("a b.onnx"))["runs"]
    assert run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "a%20b.onnx"


def test_a_clean_file_has_no_results() -> None:
    (run,) = sarif.to_sarif(lint(model()))["runs"]
    assert run["results"] == []
    assert run["tool"]["driver"]["rules"] == []
