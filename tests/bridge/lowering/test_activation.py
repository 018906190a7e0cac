"""Activations whose attributes are float32 also where the input is float64."""

import numpy as np
import pytest
from onnx import TensorProto

from onnxqat.bridge.importing.importer import to_torch
from tests.bridge import one_node, parity


@pytest.mark.parametrize("op_type", ["Selu", "LeakyRelu", "HardSigmoid"])
def test_default_attributes_of_float64(op_type) -> None:
    inputs = {"x": np.linspace(-3, 3, 13)}
    model = one_node.make(
        op_type, inputs, outputs={"y": TensorProto.DOUBLE}, opset=18
    )  # of this version, onnxruntime has them for float64
    found = parity.run_module(to_torch(model), inputs)[0]
    wanted = parity.session(model).run(None, inputs)[0]
    np.testing.assert_allclose(found, wanted, rtol=1e-14)


@pytest.mark.parametrize("op_type", ["Elu", "LeakyRelu"])
def test_an_infinite_slope_leaves_zero_alone(op_type) -> None:
    inputs = {"x": np.linspace(-3, 3, 13, dtype=np.float32)}
    model = one_node.make(op_type, inputs, alpha=float("inf"))
    (found,) = parity.run_module(to_torch(model), inputs)
    (wanted,) = parity.session(model).run(None, inputs)
    np.testing.assert_array_equal(found, wanted)
