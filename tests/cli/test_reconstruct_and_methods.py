"""``reconstruct``, and the group ``methods``."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onnxqat.promises import ExtensionCheck, Finding
from onnxqat.training.methods import _check

Run = Callable[..., Any]


def test_reconstruct(qdq: Path, onnxqat: Run) -> None:
    before = qdq.read_bytes()
    done = onnxqat(
        "reconstruct", "model.qdq.onnx", "--data", "data.npz", "--iterations", "3", "--batch-size", "4", "--json"
    )
    assert done.status == 0, done.err
    assert done.json["files"] == ["model.qdq.reconstructed.onnx"]
    assert qdq.read_bytes() == before
    assert Path("model.qdq.reconstructed.onnx").is_file()
    figures = done.json["figures"]
    assert figures["samples"] == 12
    assert figures["blocks"] >= 1


def test_reconstruct_refuses(qdq: Path, onnxqat: Run) -> None:
    done = onnxqat("reconstruct", "model.qdq.onnx", "--data", "data.npz", "--recipe", "gptq")
    assert done.status == 2
    assert all(name in done.err for name in ("--recipe", "adaround", "brecq", "qdrop"))
    assert onnxqat("reconstruct", "model.onnx", "--data", "data.npz").status == 2
    Path("data.npz").unlink()  # else it is taken: the file records that it was calibrated on it
    assert onnxqat("reconstruct", "model.qdq.onnx").status == 2


def test_methods_list(onnxqat: Run) -> None:
    listed = onnxqat("methods", "list", "--json").json
    assert {"lsq", "lsq-plus", "dorefa", "adaround", "ema"} <= set(listed)
    assert all(listed.values()), "a line about each"
    assert "lsq-plus" in onnxqat("methods").out


@pytest.mark.parametrize("passed", [True, False])
def test_methods_check(passed: bool, onnxqat: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    finding = Finding("parity", passed, "" if passed else "3 values differ")
    monkeypatch.setattr(_check, "check", lambda name: ExtensionCheck(name, (finding,)))
    done = onnxqat("methods", "check", "mine.py")
    assert done.status == (0 if passed else 1)
    assert ("broken: 3 values differ" in done.out) is not passed
    assert onnxqat("methods", "check", "mine.py", "--json").json["findings"]["parity"] == (finding.message or None)


def test_methods_check_refuses(onnxqat: Run, tmp_path: Path) -> None:
    done = onnxqat("methods", "check", str(tmp_path / "absent.py"))
    assert done.status == 2
    assert "no method file" in done.err
    assert onnxqat("finetune", "model.qdq.onnx", "--method", "n2uq").status == 2
