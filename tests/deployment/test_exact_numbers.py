"""With ``--exact``, a compiler that is installed computes what the file says, node by node."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxqat
from onnxqat.backends import schema
from onnxqat.deployment.choice import compiler_of
from onnxqat.deployment.handoff import handoff
from onnxqat.placement.table_overrides import Overrides
from tests.backends.planning import proto, weight
from tests.calibration.test_tie_free_sums import network


@pytest.mark.parametrize("backend", ["openvino-cpu", "qnn-htp", "rknn"])
def test_every_node_gives_the_bits_of_the_file(backend: str, tmp_path: Path) -> None:
    """A pool of averages alone may meet a tie, which HTP rounds up."""
    compiler = compiler_of(schema.load(backend), [])
    if compiler is None or compiler.version() is None:
        pytest.skip(f"the compiler of {backend} is not installed")
    x = 3 * np.random.default_rng(1).standard_normal((4, 3, 10, 10)).astype(np.float32)
    made = onnxqat.insert_qdq(network(), backend, data={"x": x}, overrides=Overrides(exact=True)).model
    report = handoff(made, backend, tmp_path / "bundle", data={"x": x}, limit=4)
    assert report.passed
    found = {n.name or n.op_type: n.own_steps for n in report.nodes if n.own_steps is not None}
    assert len(found) >= 8
    assert {name for name, steps in found.items() if steps and "Pool" not in name} == set()


SILUS = f"""<ir_version: 8, opset_import: ["" : 13]> g (float[1,3,64,64] x) => (float[1,8,64,64] y) <
    float[8,3,1,1] w = {weight(8, 3, 1, 1)}, float[8,8,1,1] k = {weight(8, 8, 1, 1)},
    float[8,8,1,1] v = {weight(8, 8, 1, 1)}> {{
    c = Conv(x, w) g = Sigmoid(c) a = Mul(c, g) d = Conv(a, k) h = Sigmoid(d) b = Mul(d, h) y = Conv(b, v) }}"""


@pytest.mark.parametrize("backend", ["openvino-cpu", "onnxruntime-cpu", "qnn-htp", "rknn"])
def test_silus_give_the_bits_of_the_file(backend: str, tmp_path: Path) -> None:
    """HTP and RKNN compute x * sigmoid(x) as one, and drop the pair in the middle that they ask for."""
    compiler = compiler_of(schema.load(backend), [])
    if compiler is None or compiler.version() is None:
        pytest.skip(f"the compiler of {backend} is not installed")
    # few bits, as pixels have: OpenVINO adds the zero point before it rounds, which may end between two codes
    x = np.rint(48 * np.random.default_rng(1).standard_normal((1, 3, 64, 64))).astype(np.float32) / 16
    made = onnxqat.insert_qdq(proto(SILUS), backend, data={"x": x}, overrides=Overrides(exact=True)).model
    report = handoff(made, backend, tmp_path / "bundle", data={"x": x}, limit=1)
    assert [(n.name, n.own_steps) for n in report.nodes if n.own_steps] == []
    assert [c.largest_steps for c in report.outputs] == [0]
    silus = {n.kind for n in report.nodes if n.op_type in ("Sigmoid", "Mul")}
    assert silus == {"integer"} or backend == "openvino-cpu"


@pytest.mark.parametrize("exact", [False, True])
def test_channels_of_next_to_nothing_in_htp(exact: bool, tmp_path: Path) -> None:
    """Its shifter takes positions modulo 32: any code came out of such a channel, with or without --exact."""
    compiler = compiler_of(schema.load("qnn-htp"), [])
    if compiler is None or compiler.version() is None:
        pytest.skip("the compiler of qnn-htp is not installed")
    model = proto(f"""g (float[1,4,16,16] x) => (float[1,4,16,16] y) <float[4,1,3,3] w = {weight(4, 1, 3, 3)},
        float[4] b = {{0.1, 0.2, -0.3, 0.4}}> {{ y = Conv<pads = [1,1,1,1], group = 4>(x, w, b) }}""")
    tensors = {t.name: t for t in model.graph.initializer}
    values = onnx.numpy_helper.to_array(tensors["w"]) * np.float32([1, 1e-12, 1e-9, 1]).reshape(4, 1, 1, 1)
    tensors["w"].CopyFrom(onnx.numpy_helper.from_array(values.astype(np.float32), "w"))
    x = np.rint(48 * np.random.default_rng(1).standard_normal((1, 4, 16, 16))).astype(np.float32) / 16
    made = onnxqat.insert_qdq(model, "qnn-htp", data={"x": x}, overrides=Overrides(exact=exact)).model
    report = handoff(made, "qnn-htp", tmp_path / "bundle", data={"x": x}, limit=1)
    assert report.outputs[0].largest_steps <= (0 if exact else 1.001)
