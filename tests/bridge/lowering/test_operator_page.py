"""docs/operators.md says what the package holds.

Beside the node cases and in this process, since both go through what onnx collects, which takes seconds.
"""

import logging
import re
from collections.abc import Iterator

import onnx
import pytest
import torch

from tools import operator_table


@pytest.fixture
def as_a_program() -> Iterator[None]:
    """What the tool sets for its own process is put back."""
    logger, threads = logging.getLogger("onnx_ir"), torch.get_num_threads()
    level = logger.level
    with torch.random.fork_rng(devices=()):
        yield
    logger.setLevel(level)
    torch.set_num_threads(threads)


@pytest.mark.slow
@pytest.mark.usefixtures("as_a_program")
@pytest.mark.filterwarnings("default")  # of the values of the cases, and what warns here is no error to a tool
def test_the_page_of_operators_is_that_of_the_tool() -> None:
    page = operator_table.PAGE.read_text(encoding="utf-8")
    written = re.search(r"with onnx ([\w.]+);", page)
    assert written is not None
    if written[1] != onnx.__version__:
        pytest.skip(f"the page is of onnx {written[1]}, installed is {onnx.__version__}")
    assert operator_table.page() == page, "it is stale: run python tools/operator_table.py"
    assert operator_table.uncovered() == {}


def test_every_operator_that_is_refused_has_a_reason() -> None:
    assert "not written yet" not in operator_table.PAGE.read_text(encoding="utf-8")
