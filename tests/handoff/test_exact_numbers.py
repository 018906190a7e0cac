"""With ``--exact``, a compiler that is installed computes what the file says, node by node."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import onnxqat
from onnxqat.backends import schema
from onnxqat.backends.selection import Overrides
from onnxqat.handoff._choice import compiler_of
from onnxqat.handoff.handoff import handoff
from tests.calibration.test_odd_sums import network


@pytest.mark.parametrize("backend", ["openvino-cpu", "qnn-htp"])
def test_every_node_gives_the_bits_of_the_file(backend: str, tmp_path: Path) -> None:
    """A pool of averages alone may meet a tie, which HTP rounds up."""
    compiler = compiler_of(schema.load(backend), [])
    if compiler is None or compiler.version() is None:
        pytest.skip(f"the compiler of {backend} is not installed")
    x = 3 * np.random.default_rng(1).standard_normal((4, 3, 10, 10)).astype(np.float32)
    made = onnxqat.insert_qdq(network(), backend, calibration={"x": x}, overrides=Overrides(exact=True)).model
    report = handoff(made, backend, tmp_path / "bundle", data={"x": x}, samples=4)
    assert report.passed
    found = {n.name or n.op_type: n.own_steps for n in report.nodes if n.own_steps is not None}
    assert len(found) >= 8
    assert {name for name, steps in found.items() if steps and "Pool" not in name} == set()
