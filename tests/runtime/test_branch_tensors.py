"""Tensors inside branches of If are observed like others."""

import numpy as np
import onnx
import pytest

from onnxqat.calibration.runner import calibrate
from onnxqat.errors import UsageError
from onnxqat.graph import io
from onnxqat.runtime.session import Session
from onnxqat.types import QType, TensorSpec

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N] x, bool c, bool d) => (float[N] y) {
    a = Neg(x)
    y = If(c) <then_branch = yes () => (float[N] r) { p = Exp(a) r = Sqrt(p) },
               else_branch = no () => (float[N] s) {
        q = Abs(a)
        s = If(d) <then_branch = yes2 () => (float[N] r2) { u = Mul(q, q) r2 = Identity(u) },
                   else_branch = no2 () => (float[N] s2) { s2 = Relu(a) }> }> }"""
NAMES = ("a", "p", "r", "q", "u", "s2", "s", "y")


def feeds(c: bool, d: bool) -> dict[str, np.ndarray]:
    return {"x": np.float32([1, -2, 3]), "c": np.asarray(c), "d": np.asarray(d)}


def test_what_a_session_returns() -> None:
    session = Session(io.load(onnx.parser.parse_model(TEXT)), optimize=False, tensors=NAMES)
    assert session.output_names == ("y",)
    x = feeds(True, True)["x"]
    ran = {
        (True, True): {"p": np.exp(-x), "r": np.sqrt(np.exp(-x))},
        (False, True): {"q": np.abs(x), "u": x * x, "s": x * x},
        (False, False): {"q": np.abs(x), "s2": np.maximum(-x, 0), "s": np.maximum(-x, 0)},
    }
    for (c, d), expected in ran.items():
        found = session.run(feeds(c, d), NAMES)
        assert {name for name, value in found.items() if value.size} == {*expected, "a", "y"}
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-6, err_msg=name)


def test_observed_over_batches() -> None:
    spec = TensorSpec(QType.of(8, signed=True))
    found = calibrate(
        onnx.parser.parse_model(TEXT), dict.fromkeys(NAMES, spec), [feeds(True, True), feeds(False, True)]
    )
    assert [found[name].count for name in NAMES] == [6, 3, 3, 3, 3, 0, 3, 6]
    np.testing.assert_allclose(found["u"].range(), (1, 9))
    assert [r.nodes for r in found.remarks] == [("s2",)]


def test_bodies_of_loops_are_out_of_reach() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[N] x) => (float[N] y) <int64 trip = {2}, bool go = {1}> {
        y = Loop(trip, go, x) <body = b (int64 i, bool h, float[N] v) => (bool k, float[N] w) {
            k = Identity(h) w = Neg(v) }> }"""
    with pytest.raises(UsageError, match="'w'"):
        calibrate(onnx.parser.parse_model(text), {"w": TensorSpec(QType.of(8, signed=True))}, [np.zeros(3, np.float32)])
