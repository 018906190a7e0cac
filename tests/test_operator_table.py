"""docs/operators.md says what the package holds."""

import re
import subprocess
import sys

import onnx
import pytest

from tests.source_tree import REPOSITORY

PAGE = REPOSITORY / "docs" / "operators.md"


@pytest.mark.slow
def test_the_page_of_operators_is_that_of_the_tool() -> None:
    written = re.search(r"with onnx ([\w.]+);", PAGE.read_text(encoding="utf-8"))
    assert written is not None
    if written[1] != onnx.__version__:
        pytest.skip(f"the page is of onnx {written[1]}, installed is {onnx.__version__}")
    command = [sys.executable, str(REPOSITORY / "tools" / "operator_table.py"), "--check"]
    run = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "not covered" not in run.stdout


def test_every_operator_that_is_refused_has_a_reason() -> None:
    assert "not written yet" not in PAGE.read_text(encoding="utf-8")
