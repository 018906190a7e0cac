"""The public names of the package, whatever was imported before and however often they are asked for."""

import inspect
import re
import subprocess
import sys

import pytest

import onnxqat
from onnxqat import compat

NAMES = sorted({*onnxqat.__all__, *compat.__all__} - {"__version__", "QatError"})


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_can_be_called_again_and_again(name: str) -> None:
    for _ in range(2):
        assert callable(getattr(onnxqat, name))


def test_functions_stay_functions_whatever_is_imported() -> None:
    """No package has the name of a public function: importing one would put it in the function's place."""
    code = """
import inspect
import onnxqat
before = {name: getattr(onnxqat, name) for name in ("auto", "handoff", "lint", "cut", "validate", "profile", "mixed_precision")}
import onnxqat.autotune.auto, onnxqat.deployment.handoff, onnxqat.linting.lint
import onnxqat.subgraphs.cut, onnxqat.validation.validate, onnxqat.validation.profile
import onnxqat.bit_allocation.mixed_precision
for name, function in before.items():
    assert inspect.isfunction(function), name
    assert getattr(onnxqat, name) is function, name
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_names_of_other_tools_are_those_of_compat() -> None:
    assert set(compat.__all__).isdisjoint(onnxqat.__all__)
    assert all(getattr(onnxqat, name) is getattr(compat, name) for name in compat.__all__)


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"BackendType"}))
def test_every_argument_of_a_public_function_is_described(name: str) -> None:
    function = getattr(onnxqat, name)
    text = inspect.getdoc(function) or ""
    missing = [n for n in inspect.signature(function).parameters if not re.search(rf"\W{n}[:,]", text)]
    assert missing == []
