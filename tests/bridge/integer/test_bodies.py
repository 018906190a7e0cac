"""Bodies of If, Loop and Scan: what computes on codes there, and what computes in float."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
import torch

from onnxqat import prove, to_integer, to_torch
from onnxqat.validation.simulate import simulate
from onnxqat.validation.validate import validate

PAIRS = """qa = QuantizeLinear(v, s, z) da = DequantizeLinear(qa, s, z)
    qw = QuantizeLinear(w, t, o) dw = DequantizeLinear(qw, t, o)
    c = Conv(da, dw) r = Relu(c) qr = QuantizeLinear(r, u, n) dr = DequantizeLinear(qr, u, n)"""
"""A layer on codes, ``dr`` from ``v``."""

HEAD = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[1, 3, 6, 6] x) => (float[1, 3, 6, 6] y)
    <float s = {0.031}, uint8 z = {131}, float t = {0.013}, int8 o = {0}, float u = {0.021}, uint8 n = {0}, float zero = {0},
    int64 trips = {3}, float[3, 3, 1, 1] w = {0.5, -0.2, 0.3, 0.1, 0.7, -0.4, 0.2, 0.3, 0.6}> {"""

IF = f"""{HEAD} m = ReduceMean<keepdims = 0>(x) pos = Greater(m, zero)
    y = If(pos) <then_branch = taken () => (float[1, 3, 6, 6] a) {{ v = Identity(x) {PAIRS} a = Sin(dr) }},
                 else_branch = other () => (float[1, 3, 6, 6] b) {{ k = Conv(x, w) b = Identity(k) }}> }}"""
LOOP = f"""{HEAD} y = Loop(trips, , x) <body = body (int64 i, bool g, float[1, 3, 6, 6] v)
    => (bool h, float[1, 3, 6, 6] e) {{ h = Identity(g) {PAIRS} e = Sin(dr) }}> }}"""


def model(text: str) -> onnx.ModelProto:
    found = onnx.parser.parse_model(text)
    onnx.checker.check_model(found, full_check=True)
    return found


def image(mean: float) -> np.ndarray:
    return (np.random.default_rng(3).normal(size=(1, 3, 6, 6)) + mean).astype(np.float32)


@pytest.mark.parametrize("engine", ["torch", "numpy"])
@pytest.mark.parametrize("text", [IF.replace("Sin", "Identity"), LOOP.replace("Sin", "Identity")], ids=["If", "Loop"])
def test_layers_in_bodies_give_what_the_default_session_gives(text: str, engine: str) -> None:
    found = to_integer(model(text), engine=engine)  # type: ignore[arg-type]
    assert [kernel for _, kernel in found.kernels] == ["Convolution"]
    session = ort.InferenceSession(model(text).SerializeToString(), providers=["CPUExecutionProvider"])
    for mean in (0.5, 2.0):
        expected = session.run(None, {"x": image(mean)})[0]
        np.testing.assert_array_equal(found.run({"x": image(mean)}).outputs["y"], expected)
    (sums,) = found.sums()
    assert sums.largest > 0


def test_codes_of_a_branch_are_there_where_it_is_taken_and_those_of_loops_never() -> None:
    branches = to_integer(model(IF))
    assert set(branches.run({"x": image(0.5)}).codes) == {"v", "r"}
    assert branches.run({"x": image(-0.5)}).codes == {}
    assert to_integer(model(LOOP)).run({"x": image(0.5)}).codes == {}


def test_what_bodies_compute_in_float_is_named() -> None:
    assert to_integer(model(IF)).float_operators() == ["m", "pos", "a", "k"]
    assert to_integer(model(LOOP)).float_operators() == ["e"]


def test_operators_with_several_results_are_named() -> None:
    weights = ", ".join(["0.1"] * 54)
    head = HEAD.replace(
        "int64 trips",
        f"int64[3] rows = {{6, 1, 18}}, float[1, 3, 18] gw = {{{weights}}}, float[1, 3, 1] gr = {{0.1, 0.2, 0.3}}, int64 trips",
    )
    text = f"""{head} v = Identity(x) {PAIRS} f = Reshape(dr, rows) a, b = GRU<hidden_size = 1>(f, gw, gr)
        d = ReduceMean<keepdims = 0>(a) y = Add(dr, d) }}"""
    assert to_integer(model(text)).float_operators() == ["a", "d", "y"]


def test_gradients_reach_the_weights_of_a_body() -> None:
    plain, codes = to_torch(model(LOOP)), to_torch(model(LOOP), arithmetic="onnxruntime")
    assert (codes.state_dict().keys(), codes.code) == (plain.state_dict().keys(), plain.code)
    x = torch.from_numpy(image(0.5))
    codes(x).square().mean().backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in codes.parameters())


def test_reports_tell_of_bodies() -> None:
    """What runs in float, what was measured, and what was not."""
    x = np.concatenate([image(0.5), image(0.7)])
    report = simulate(model(LOOP), [{"x": each[None]} for each in x])
    assert (report.kernels, report.floats) == ({"Convolution": 1}, ("e",))
    proof = prove(model(IF), [{"x": each[None]} for each in x])
    (layer,) = proof.layers
    assert layer.measured is not None
    assert {s.tensor for s in proof.saturation} == {"v", "r"}
    checked = validate(model(IF), model(IF), [{"x": each[None]} for each in x], use_torch=False)
    assert [name for name, _ in checked.float_nodes] == ["Conv->k"]
