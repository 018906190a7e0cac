"""The public names of the package, whatever was imported before and however often they are asked for."""

import inspect
import re
import subprocess
import sys

import pytest

import onnxqat

NAMES = sorted(set(onnxqat.__all__) - {"__version__", "QatError"})


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_can_be_called_again_and_again(name: str) -> None:
    for _ in range(2):
        assert callable(getattr(onnxqat, name))


def test_a_package_acts_as_its_function_when_it_was_imported_first() -> None:
    code = """
import inspect
import onnxqat.deployment.forms, onnxqat.linting.rules
import onnxqat.deployment.handoff as inner
assert inspect.getdoc(onnxqat.handoff) == inspect.getdoc(inner.handoff)
assert list(inspect.signature(onnxqat.handoff).parameters) == list(inspect.signature(inner.handoff).parameters)
try:
    onnxqat.lint("no such file")
except onnxqat.QatError as error:
    assert error.code == "model-not-found", error.code
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"BackendType"}))
def test_every_argument_of_a_public_function_is_described(name: str) -> None:
    function = getattr(onnxqat, name)
    text = inspect.getdoc(function) or ""
    missing = [n for n in inspect.signature(function).parameters if not re.search(rf"\W{n}[:,]", text)]
    assert missing == []
