"""What insert-qdq writes is not refused: biases behind data movement, and constants beside 16-bit activations."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

import onnxqat
from onnxqat.linting.lint import lint

DATA = {"x": np.random.default_rng(4).normal(size=(12, 3, 8, 8)).astype(np.float32)}


def errors(text: str, made_for: str, target: str) -> set[str]:
    model = onnx.parser.parse_model(text)
    made = onnxqat.insert_qdq(model, backend=made_for, data=DATA, guard=False).model
    return {f.code for f in lint(made, backend=target).findings if f.severity == "error"}


@pytest.mark.parametrize("middle", ["MaxPool<kernel_shape = [3, 3]>(r)", "Identity(r)"])
def test_a_bias_fits_where_its_layer_reads_a_moved_tensor(middle: str) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[N, 3, 8, 8] x) => (float[N, 2, h, v] y) <float[3, 3, 1, 1] w = {{0.5, -0.2, 0.3, 0.1, 0.7, -0.4, 0.2, 0.3, 0.6}},
    float[2, 3, 1, 1] k = {{1e-12, 2e-12, -1e-12, 0.5, 0.2, 0.1}}, float[2] b = {{1, 1}}> {{
        c = Conv(x, w) r = Relu(c) p = {middle} y = Conv(p, k, b) }}"""
    assert errors(text, "openvino-cpu", "openvino-cpu") == set()


def test_a_constant_has_the_width_of_the_activation_beside_it() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[N, 3, 8, 8] x) => (float[N, 3, 8, 8] y) <float[1] k = {0.37}> { a = Tanh(x) b = Mul(a, k) y = Add(b, a) }"""
    assert errors(text, "qnn-htp-a16", "qnn-htp") == set()
