"""Files of a bundle are known by its manifest, and nothing is named into it."""

import json
from pathlib import Path

import pytest

from onnxqat.graph import bundles


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "model.onnx").write_bytes(b"model")
    (folder / "report.json").write_text('{"passed": true}', encoding="utf-8")
    listed = {name: bundles.digest(folder / name) for name in ("model.onnx", "report.json")}
    (folder / "manifest.json").write_text(json.dumps({"command": bundles.COMMAND, "sha256": listed}), encoding="utf-8")
    return folder


def test_what_is_made_of_a_bundles_file_is_named_beside_the_bundle(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bundles.outside(folder / "model.onnx") == folder.parent / "made.onnx"
    assert bundles.outside(folder / "mine.onnx") == folder / "mine.onnx", "no file of the bundle"
    monkeypatch.chdir(folder.parent)
    assert bundles.outside("made/model.onnx") == Path("made.onnx")
    monkeypatch.chdir(folder)
    assert bundles.outside("model.onnx") == folder.parent / "made.onnx"


def test_the_report_of_a_bundle_counts_as_it_was_written(folder: Path) -> None:
    bundle = bundles.of(folder / "model.onnx")
    assert bundle is not None
    assert bundle.holds_unchanged("model.onnx")
    assert bundle.report() == {"passed": True}
    (folder / "report.json").write_text('{"passed": false}', encoding="utf-8")
    assert bundle.report() == {}


@pytest.mark.parametrize("text", ["", "[]", '{"sha256": {"model.onnx": "0"}}', "[" * 100_000])
def test_another_manifest_makes_no_bundle(text: str, folder: Path) -> None:
    (folder / "manifest.json").write_text(text, encoding="utf-8")
    assert bundles.of(folder / "model.onnx") is None
