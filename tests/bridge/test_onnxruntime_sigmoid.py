"""Sigmoid and Tanh behind which codes are chosen while the model runs: onnxruntime's bits."""

import numpy as np
import onnx
import pytest
import torch

import onnxqat
from onnxqat.bridge.functional import onnxruntime_sigmoid
from tests.bridge.parity import session

QUANTIZED = """<ir_version: 8, opset_import: ["" : 18]>
    g (float[n] x) => (uint8[n] codes, float scale, uint8 zero_point, float[n] beside) {
        gate = FUNCTION (x)
        y = Mul (x, gate)
        codes, scale, zero_point = DynamicQuantizeLinear (y)
        beside = FUNCTION (y)
    }"""


def values(count: int = 200_000) -> np.ndarray:
    """Values of every size, both ends of both functions among them."""
    random = np.random.default_rng(0)
    ends = np.array([0.0, -0.0, 9.0, -9.0, 18.0, -18.0, 1e-30, np.inf, -np.inf, np.nan], np.float32)
    return np.concatenate([(random.standard_normal(count) * 6).astype(np.float32), ends])


@pytest.mark.parametrize("name", ["Sigmoid", "Tanh"])
def test_bits_are_those_of_onnxruntime(name: str) -> None:
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 18]> g (float[n] x) => (float[n] y) {{ y = {name} (x) }}'
    )
    x = values()
    (wanted,) = session(model).run(None, {"x": x})
    found = getattr(onnxruntime_sigmoid, name.lower())(torch.from_numpy(x)).numpy()
    np.testing.assert_array_equal(found.view(np.int32), wanted.view(np.int32))


@pytest.mark.parametrize("name", ["Sigmoid", "Tanh"])
def test_only_what_a_dynamic_quantizer_reads_is_exchanged(name: str) -> None:
    model = onnx.parser.parse_model(QUANTIZED.replace("FUNCTION", name))
    module = onnxqat.to_torch(model)
    targets = [n.target for n in module.graph.nodes if n.op == "call_function"]
    assert getattr(onnxruntime_sigmoid, name.lower()) in targets
    assert getattr(torch, name.lower()) in targets
    x = values()[:-3]  # finite
    wanted = session(model).run(None, {"x": x})
    for found, right in zip(module(torch.from_numpy(x))[:3], wanted[:3], strict=True):
        np.testing.assert_array_equal(found.detach().numpy(), right)


@pytest.mark.parametrize("name", ["sigmoid", "tanh"])
def test_gradient_is_that_of_the_function(name: str) -> None:
    x = torch.linspace(-8, 8, 257, requires_grad=True)
    (found,) = torch.autograd.grad(getattr(onnxruntime_sigmoid, name)(x).sum(), x)
    (wanted,) = torch.autograd.grad(getattr(torch, name)(x).sum(), x)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)
    assert getattr(onnxruntime_sigmoid, name)(x.double()).dtype is torch.float64
