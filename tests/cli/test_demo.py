"""The demo takes a real model the whole way."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from onnxqat.cli.commands import demo
from onnxqat.deployment.bundle import digests
from onnxqat.graph import own_files
from onnxqat.report.model_report.schema import ModelReport

FILES = ("model", "model.qdq", "w2a2.qdq", "tuned.qdq")
BUNDLES = ("bundle", "bundle_w2a2", "bundle_tuned")
Run = Callable[..., Any]


@pytest.mark.slow
def test_demo(tmp_path: Path, onnxqat: Run) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    done = onnxqat("demo", "-o", tmp_path / "demo", "--json")
    assert done.status == 0, done.out + done.err
    rows = {row["model"]: row for row in done.json["tables"]["states"]}
    assert list(rows) == ["float", "w8a8", "w2a2", "w2a2 tuned"]
    assert rows["float"]["top1"] > 0.97
    assert rows["w8a8"]["top1"] > rows["float"]["top1"] - 0.005
    # Calibration loses 30 points at 2 bits, training wins all but 3 back.
    assert rows["w2a2"]["top1"] < rows["float"]["top1"] - 0.1
    assert rows["w2a2 tuned"]["top1"] > rows["w2a2"]["top1"] + 0.1
    assert rows["w2a2 tuned"]["top1"] > rows["float"]["top1"] - 0.08
    assert done.json["next_command"].endswith(f"--data {tmp_path / 'demo' / 'test.npz'}")
    assert onnxqat(*done.json["next_command"].split()[1:]).status == 0
    for name in FILES:
        onnx.checker.check_model(onnx.load(tmp_path / "demo" / f"{name}.onnx"), full_check=True)
    for name in BUNDLES:
        assert json.loads((tmp_path / "demo" / name / "report.json").read_text())
    assert len(list((tmp_path / "demo" / "images").glob("*/*.png"))) == 320
    _the_page_is_the_interactive_one(tmp_path / "demo" / "report.html")
    _a_second_one_replaces_only_what_the_first_wrote(tmp_path / "demo", onnxqat)


def _the_page_is_the_interactive_one(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    (content,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    found = ModelReport.model_validate_json(content)
    assert [variant.name for variant in found.variants] == ["this file", "float", "before", "8 bits"]
    assert {said.name for said in found.judgements} == {"parity", "accuracy", "deployment"}
    assert all(quantizer.before is not None and quantizer.now.values is not None for quantizer in found.quantizers)
    assert sum(node.cost is not None for node in found.nodes) > 3
    assert found.training is not None
    assert found.training.loss
    assert [target.integer for target in found.targets] == [8]


def _a_second_one_replaces_only_what_the_first_wrote(folder: Path, onnxqat: Run) -> None:
    own_files.OwnFiles(folder, demo.COMMAND).check(demo.WRITTEN)
    (folder / "mine.onnx").write_bytes(b"beside")
    own_files.OwnFiles(folder, demo.COMMAND).check(demo.WRITTEN)
    with (folder / "tuned.qdq.onnx").open("ab") as file:
        file.write(b"changed")
    (folder / "bundle" / "engine.bin").write_bytes(b"added")
    before = digests(folder)
    done = onnxqat("demo", "-o", folder)
    assert done.status == 2
    assert "not replaced: tuned.qdq.onnx, bundle/engine.bin" in done.err
    assert "-o FOLDER" in done.err
    assert digests(folder) == before
