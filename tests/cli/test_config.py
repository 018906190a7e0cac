"""Configuration files of insert-qdq: options and rules from YAML, what wins, and mistakes in them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from onnxqat.placement import config_file
from tests.source_tree import REPOSITORY

Run = Callable[..., Any]
CONFIG = """schema: 1
options:
  calibration: data.npz
  bias-correction: false
  per-tensor: true
  fast: true
  exclude: head
nodes:
- operator: Conv
  weights: {bits: 4, observer: mse}
"""


def write(text: str) -> Path:
    file = Path("config.yaml")
    file.write_text(text)
    return file


def test_a_saved_configuration_makes_the_same_file(folder: Path, onnxqat: Run) -> None:
    done = onnxqat(
        "insert-qdq", "model.onnx", "--config", write(CONFIG), "--limit", 6, "-o", "a.onnx", "--save-config", "b.yaml"
    )
    assert done.status == 0, done.err
    saved = yaml.safe_load(Path("b.yaml").read_text())
    assert saved["options"] == {
        "calibration": "data.npz",
        "limit": 6,
        "exclude": ["head"],
        "per-tensor": True,
        "no-bias-correction": True,
        "fast": True,
    }
    assert saved["nodes"] == [{"operator": ["Conv"], "weights": {"bits": 4, "observer": "mse"}}]
    assert onnxqat("insert-qdq", "model.onnx", "--config", "b.yaml", "-o", "b.onnx").status == 0
    assert Path("a.onnx").read_bytes() == Path("b.onnx").read_bytes()


def test_the_listed_nodes_are_rules(folder: Path, onnxqat: Run) -> None:
    first = ("insert-qdq", "model.onnx", "-c", "data.npz", "--fast", "-o", "a.onnx", "--save-config", "a.yaml")
    assert onnxqat(*first).status == 0
    text = Path("a.yaml").read_text()
    listed = [line[2:] for line in text.splitlines() if line.startswith(("# - ", "#   "))]
    assert listed
    config = yaml.safe_load(text)
    config["nodes"] = yaml.safe_load("\n".join(listed))
    write(yaml.safe_dump(config))
    assert onnxqat("insert-qdq", "model.onnx", "--config", "config.yaml", "-o", "b.onnx").status == 0
    assert Path("a.onnx").read_bytes() == Path("b.onnx").read_bytes()


def test_the_command_line_wins(folder: Path, onnxqat: Run) -> None:
    done = onnxqat("insert-qdq", "model.onnx", "--config", write(CONFIG), "-c", "missing.npz", "-o", "a.onnx")
    assert done.status == 2
    assert "missing.npz" in done.err


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("schema: 2", "schema"),
        ("- 1", "a mapping of keys"),
        ("schema: 1\noptions: {calibratoin: x}", "calibratoin"),
        ("schema: 1\noptions: {output: x}", "output"),
        ("schema: 1\noptions: {per-tensor: 3}", "true or false"),
        ("schema: 1\noptions: {limit: some}", "limit"),
        ("schema: 1\nnodes: [{name: stem, weights: {bits: 9}}]", "width of 9 bits"),
        ("schema: 1\nnodes: [{name: stem, weight: {bits: 4}}]", "there is no such key"),
        ("schema: 1\nnodes: [{name: stem, weight: {bits: 4}}]", "did you mean weights?"),
        ("schema: 1\nnodes: [{op: Conv, weights: {bits: 4}}]", "one of: name, regex, operator"),
        ("schema: 1\nnodes: [{name: stem, weights: {bit: 4}}]", "did you mean bits?"),
        ("options: {limit: 4}", "write `schema: 1` as the first line"),
        ("schema: 1\noptions:\n\tlimit: 4", "indented with spaces"),
        ("schema: 1\nnodes: [{name: stem}]", "needs weights"),
        ("schema: 1\nnodes: [{name: nothing, float: true}]", "matches no node"),
        ("a: &a [1]\nb: *a", "aliases"),
        ("schema: [", "cannot be read"),
        ("schema: 1\noptions:\n  bits: 8,8\n  bits: 4,4", "line 4: the key 'bits' is there twice, first in line 3"),
    ],
)
def test_mistakes_are_named(folder: Path, onnxqat: Run, text: str, problem: str) -> None:
    done = onnxqat("insert-qdq", "model.onnx", "--config", write(text), "--random-data", "-o", "a.onnx")
    assert done.status == 2
    assert problem in done.err
    assert not Path("a.onnx").exists()


@pytest.mark.parametrize("kind", ["folder", "model", "UTF-16"])
def test_a_file_that_is_no_text_is_named(folder: Path, onnxqat: Run, kind: str) -> None:
    Path("utf16.yaml").write_text("schema: 1\n", encoding="utf-16")
    name, said = {
        "folder": (".", "directory"),
        "model": ("model.onnx", "it is not text in UTF-8"),
        "UTF-16": ("utf16.yaml", "it is not text in UTF-8"),
    }[kind]
    done = onnxqat("insert-qdq", "model.onnx", "--config", name, "--random-data", "-o", "a.onnx")
    assert done.status == 2
    assert said in done.err
    assert "hint: a configuration is a text file of YAML" in done.err


def test_the_configuration_is_not_overwritten(folder: Path, onnxqat: Run) -> None:
    done = onnxqat(
        "insert-qdq", "model.onnx", "--config", write(CONFIG), "-o", "a.onnx", "--save-config", "config.yaml"
    )
    assert done.status == 2
    assert Path("config.yaml").read_text() == CONFIG


def test_the_published_schema_is_current() -> None:
    published = json.loads((REPOSITORY / "docs" / "insert_qdq_config.schema.json").read_text())
    assert published == config_file.json_schema(), "run: python tools/config_schema.py"
