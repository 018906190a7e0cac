"""Activation functions that alone read a tensor: as one operator, written out, and where something else reads it too."""

import numpy as np
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest

from onnxqat.analysis import read_curves

SINGLE = (
    "Sigmoid(x)",
    "Tanh(x)",
    "Relu(x)",
    "LeakyRelu<alpha = 0.2>(x)",
    "Elu<alpha = 0.7>(x)",
    "Celu<alpha = 0.7>(x)",
    "Selu(x)",
    "Selu<alpha = 0.7, gamma = 2.0>(x)",
    "HardSigmoid<alpha = 0.3>(x)",
    "HardSwish(x)",
    "Softplus(x)",
    "Gelu(x)",
    'Gelu<approximate = "tanh">(x)',
)
WRITTEN_OUT = (
    "g = Sigmoid(x) y = Mul(x, g)",
    "g = HardSigmoid<alpha = 0.16666667>(x) y = Mul(g, x)",
    "g = Softplus(x) h = Tanh(g) y = Mul(x, h)",
)
READ_ELSEWHERE = (
    "g = Sigmoid(x) y = Mul(x, z)",
    "s = Sigmoid(x) y = Add(s, x)",
    "y = Identity(x)",
)
X = np.linspace(-30, 30, 101).astype(np.float32)


def model(body: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 20]> g (float[101] x, float[101] z) => (float[101] y) {{ {body} }}'
    )


@pytest.mark.parametrize("body", [*(f"y = {single}" for single in SINGLE), *WRITTEN_OUT])
def test_the_function_that_reads_a_tensor(body: str) -> None:
    proto = model(body)
    curve = read_curves.find(ir.serde.deserialize_model(proto).graph)["x"]
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x": X, "z": X})
    # Float32 of onnxruntime's approximations against float64.
    np.testing.assert_allclose(curve(X.astype(np.float64)), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("body", READ_ELSEWHERE)
def test_a_tensor_that_something_else_reads_too(body: str) -> None:
    assert "x" not in read_curves.find(ir.serde.deserialize_model(model(body)).graph)
