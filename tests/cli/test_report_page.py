"""--report of commands: the page of `onnxqat report` about the file, with the command's own results."""

import html
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]


def content(page: str) -> Any:
    text = Path(page).read_text(encoding="utf-8")
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert found is not None
    return json.loads(html.unescape(found[1]))


def test_insert_and_validate(qdq: Path, onnxqat: Run) -> None:
    done = onnxqat(
        "insert-qdq", "model.onnx", "-c", "data.npz", "-o", "again.onnx", "--report", "insert.html", "--json"
    )
    assert done.status == 0, done.err
    assert "insert.html" in done.json["files"]
    found = content("insert.html")
    assert found["title"] == "again.onnx"
    assert any((q["now"] or {}).get("values") for q in found["quantizers"] if q["role"] == "activation")
    args = ("model.onnx", "model.qdq.onnx", "--data", "data.npz", "--no-torch", "--report", "validate.html", "--json")
    done = onnxqat("validate", *args)
    assert "validate.html" in done.json["files"], done.err
    assert {each["name"] for each in content("validate.html")["judgements"]} == {"parity", "accuracy", "deployment"}


def test_handoff(qdq: Path, onnxqat: Run) -> None:
    given = ("--backend", "onnxruntime-cpu", "--data", "data.npz", "--float", "model.onnx", "-o", "bundle")
    done = onnxqat("handoff", "model.qdq.onnx", *given, "--report", "handoff.html", "--json")
    assert "handoff.html" in done.json["files"], done.err
    assert len(content("handoff.html")["targets"]) == 1


def test_finetune(qdq: Path, onnxqat: Run) -> None:
    pytest.importorskip("torch")
    given = ("--data", "data.npz", "--teacher", "model.onnx", "--max-steps", "2", "-o", "tuned.onnx")
    done = onnxqat("finetune", "model.qdq.onnx", *given, "--log-dir", "logs", "--report", "tuned.html", "--json")
    assert done.status == 0, done.err
    found = content("tuned.html")
    assert found["training"] is not None
    assert any(q["before"] for q in found["quantizers"])
