"""A script in another Python: what it gives arrives, what it refuses is told, and one that hangs ends with its children.

The other Python is this one; the scripts stand for those of the compilers, which need their packages.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnxqat.deployment.base_compiler import NodeResult
from onnxqat.deployment.graph_nodes import Nodes
from onnxqat.deployment.run import environment_compiler, process
from onnxqat.deployment.run.environment import Environment
from onnxqat.deployment.run.process import compile_in_process
from onnxqat.errors import CheckError, UsageError
from tests import hanging
from tests.deployment.test_compilers import running

SCRIPTS = {
    "doubles": """
import sys

def compile_and_run(job):
    assert "onnxqat" not in sys.modules
    outputs = [{job["outputs"][0]: batch["x"] * 2} for batch in job["batches"]]
    return {"outputs": outputs, "files": [], "facts": {"options": job["options"], "path": sys.path}}
""",
    "refuses": """
def compile_and_run(job):
    return {"error": "no Relu here", "refused": [["the_relu", "it is a Relu"]]}
""",
    "raises": """
def compile_and_run(job):
    raise RuntimeError("first line\\n\\nsecond line")
""",
    "traces": """
def compile_and_run(job):
    raise ValueError("Traceback (most recent call last):\\n  File x, line 3\\nKeyError: 'a;b'")
""",
    "hangs": """
import os, pathlib, subprocess, sys, time

def compile_and_run(job):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    pathlib.Path(os.environ["CHILD_FILE"]).write_text(str(child.pid))
    time.sleep(60)
""",
}


class Here(Environment):
    """An environment whose Python is this one."""

    @property
    def interpreter(self) -> Path:
        return Path(sys.executable)

    def version(self) -> str | None:
        return "1.0"


class Toy(environment_compiler.EnvironmentCompiler):
    """Runs one of the scripts above."""

    name = "doubles"
    environment = Here("doubles", "doubles", ())
    facts: Mapping[str, Any] = {}

    def read_back(self, original: onnx.ModelProto, facts: Mapping[str, Any]) -> tuple[NodeResult, ...]:
        Toy.facts = facts
        return Nodes(original).results()


@pytest.fixture(autouse=True)
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(process.SCRIPT, tmp_path)
    for name, text in SCRIPTS.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.setattr(process, "SCRIPT", tmp_path / process.SCRIPT.name)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3])
    y = helper.make_tensor_value_info("odd/name y", TensorProto.FLOAT, ["N", 3])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["odd/name y"])], "g", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)]), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def toy(name: str) -> Toy:
    made = Toy({"level": "3"})
    made.name = name
    return made


FEEDS = [{"x": np.full((1, 3), i, np.float32)} for i in range(3)]


def test_numbers_and_facts_arrive(model: Path) -> None:
    result = compile_in_process(toy("doubles"), model, FEEDS)
    assert [float(batch["odd/name y"].sum()) for batch in result.outputs] == [0.0, 6.0, 12.0]
    assert [n.name for n in result.nodes] == ["odd/name y"]
    assert Toy.facts["options"] == {"level": "3"}
    assert not any("onnxqat" in str(p) and "tests" in str(p) for p in Toy.facts["path"])
    assert toy("doubles").compile_and_run(model, FEEDS[:1]).outputs[0]["odd/name y"].shape == (1, 3)


def test_a_refusal_names_the_nodes(model: Path) -> None:
    with pytest.raises(CheckError) as caught:
        compile_in_process(toy("refuses"), model, FEEDS)
    assert "refuses refused the model: no Relu here" in caught.value.message
    assert caught.value.hint == "it names the_relu: it is a Relu"


def test_an_exception_becomes_one_line(model: Path) -> None:
    with pytest.raises(CheckError) as caught:
        compile_in_process(toy("raises"), model, FEEDS)
    assert "RuntimeError: first line second line" in caught.value.message
    with pytest.raises(CheckError) as caught:
        compile_in_process(toy("traces"), model, FEEDS)
    assert caught.value.message == "traces refused the model: ValueError: KeyError: 'a;b'"


def test_one_that_hangs_is_ended_with_its_children(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = tmp_path / "child"
    monkeypatch.setenv("CHILD_FILE", str(note))
    for timeout in hanging.LIMITS:
        with pytest.raises(CheckError) as caught:
            compile_in_process(toy("hangs"), model, FEEDS, timeout=timeout)
        assert f"did not end within {timeout} s" in caught.value.message
        if note.exists():
            break
    assert not running(int(note.read_text(encoding="utf-8")))


def test_one_that_is_not_installed_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Here, "version", lambda self: None)
    with pytest.raises(UsageError) as caught:
        compile_in_process(toy("doubles"), model, FEEDS)
    assert caught.value.hint.startswith("onnxqat handoff --install doubles")


def test_the_model_of_a_script_is_static_and_named(model: Path) -> None:
    from onnxqat.deployment.static_model import static_copy

    made = static_copy(model, FEEDS[0])
    assert [d.dim_value for d in made.graph.input[0].type.tensor_type.shape.dim] == [1, 3]
    assert [d.dim_value for d in made.graph.output[0].type.tensor_type.shape.dim] == [1, 3]
    assert made.graph.node[0].name == "odd/name y"
    assert onnx.load(model).graph.node[0].name == ""
