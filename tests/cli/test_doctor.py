"""doctor: what it prints, and its exit status."""

from collections.abc import Callable
from typing import Any

import pytest

from onnxqat.deployment import base_compiler
from onnxqat.diagnosis import packages

Run = Callable[..., Any]


def test_it_lists_packages_and_compilers(onnxqat: Run) -> None:
    done = onnxqat("doctor", "--json")
    assert done.status == (0 if done.json["passed"] else 1)
    tables = done.json["tables"]
    assert len(tables["compilers"]) == len(base_compiler.names())
    assert len(tables["packages"]) == len(packages.needed())


def test_a_problem_is_a_status(onnxqat: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "runtimes", lambda: {"onnxruntime": "1.0", "onnxruntime-gpu": "1.0"})
    done = onnxqat("doctor")
    assert done.status == 1
    assert "pip uninstall" in " ".join(done.out.split())


def test_a_writer_without_its_interpreter_is_not_all_of_a_compiler(onnxqat: Run) -> None:
    litert = base_compiler.load("litert")
    row = next(each for each in onnxqat("doctor", "--json").json["tables"]["compilers"] if each["name"] == "litert")
    assert row["version"] == litert.version()
    assert bool(row["remedy"]) == (not litert.runs_numbers)
    if row["version"] and not litert.runs_numbers:
        assert "interpreter" in row["remedy"]
        assert "--install litert" in row["remedy"]
