"""What ``onnxqat handoff`` and ``onnxqat backends probe`` say about compilers."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from onnxqat.cli import main
from onnxqat.deployment import base_compiler
from onnxqat.deployment.run import environment
from tests.validation import tiny


@pytest.fixture(autouse=True)
def nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNXQAT_ENVIRONMENTS", str(tmp_path / "environments"))


def test_compilers_are_listed_with_what_they_lack(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["handoff", "--compilers"]) == 0
    said = capsys.readouterr().out
    lines = {line.split()[0]: line for line in said.splitlines()}
    assert set(lines) == set(base_compiler.names())
    assert "onnxqat handoff --install tensorrt-rtx" in lines["tensorrt-rtx"]
    assert lines["tensorrt-rtx"].rstrip().endswith("tensorrt-nlp")
    assert "any, with --compiler" in lines["tract"]
    assert "not installed" not in lines["onnxruntime-cpu"]
    assert main.run(["handoff", "--compilers", "--json"]) == 0
    found = {entry["compiler"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert set(found) == set(base_compiler.names())
    assert found["tract"] | {"hint": ""} == {"compiler": "tract", "version": None, "hint": "", "backends": []}
    assert found["onnxruntime-cpu"]["version"]


def test_install_says_what_it_does(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "install", lambda found, **_: found.folder)
    assert main.run(["handoff", "--install", "tract"]) == 0
    told = capsys.readouterr()
    assert "installing tract==" in told.err
    assert str(environment.root() / "tract") in told.out


@pytest.mark.parametrize(("name", "hint"), [("openvino-cpu", "onnxqat[openvino]"), ("tact", "did you mean tract?")])
def test_what_cannot_be_installed(name: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["handoff", "--install", name]) == 2
    assert hint in capsys.readouterr().err


def test_a_backend_whose_compiler_is_missing_gets_its_bundle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(tiny.pair()[1], tmp_path / "model.qdq.onnx")
    bundle = tmp_path / "bundle"
    assert main.run(["handoff", str(tmp_path / "model.qdq.onnx"), "--backend", "rknn", "-o", str(bundle)]) == 0
    assert "onnxqat handoff --install rknn-toolkit2" in capsys.readouterr().out
    assert {"model.onnx", "float.onnx", "encodings.json", "rknn.quantization.cfg"} <= {p.name for p in bundle.iterdir()}
    asked = ["--backend", "rknn", "--compiler", "rknn-toolkit2", "-o", str(bundle)]
    assert main.run(["handoff", str(tmp_path / "model.qdq.onnx"), *asked]) == 2


def test_probe_prints_what_it_learned(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["backends", "probe", "onnxruntime-cpu", "--only", "Add", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kind"] == "probe"
    assert main.run(["backends", "probe", "tensorrt-rtx"]) == 2
    assert "onnxqat handoff --install tensorrt-rtx" in capsys.readouterr().err
