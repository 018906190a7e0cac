"""DynamicQuantizeLSTM against onnxruntime."""

import numpy as np
import pytest
from onnx import TensorProto

from onnxqat.bridge.importing.importer import to_torch
from onnxqat.errors import UnsupportedError
from tests.bridge import one_node, parity

HIDDEN = 8
CONSTANTS = ("W", "R", "B", "P", "w_scale", "w_zero", "r_scale", "r_zero")


def layer(dtype, *, directions=1, batch=3, per_channel=False, states=True, peepholes=False, lengths=False):
    # Signed weights have 7 bits: onnxruntime's kernels for CPUs without VNNI add pairs of larger products with
    # saturation at 16 bits.
    random = np.random.default_rng(0)
    low, high = (0, 256) if dtype is np.uint8 else (-64, 64)
    zero = 120 if dtype is np.uint8 else 0
    scales = (directions, 4 * HIDDEN) if per_channel else (directions,)

    def floats(*shape):
        return random.standard_normal(shape).astype(np.float32)

    return {
        "X": floats(6, batch, 5),
        "W": random.integers(low, high, (directions, 5, 4 * HIDDEN)).astype(dtype),
        "R": random.integers(low, high, (directions, HIDDEN, 4 * HIDDEN)).astype(dtype),
        "B": floats(directions, 8 * HIDDEN),
        "lengths": np.full(batch, 6, np.int32) if lengths else None,
        "h": floats(directions, batch, HIDDEN) if states else None,
        "c": floats(directions, batch, HIDDEN) if states else None,
        "P": floats(directions, 3 * HIDDEN) if peepholes else None,
        "w_scale": random.uniform(0.001, 0.01, scales).astype(np.float32),
        "w_zero": np.full(scales, zero, dtype),
        "r_scale": random.uniform(0.001, 0.01, scales).astype(np.float32),
        "r_zero": np.full(scales, zero, dtype),
    }


def make(inputs, **attributes):
    outputs = dict.fromkeys(["Y", "Y_h", "Y_c"], TensorProto.FLOAT)
    options = {"constants": CONSTANTS, "outputs": outputs, "domain": "com.microsoft", "rank": 3}
    model = one_node.make("DynamicQuantizeLSTM", inputs, hidden_size=HIDDEN, **options, **attributes)
    model.graph.output[0].type.tensor_type.shape.dim.add()
    return model


def check(inputs, **attributes):
    model = make(inputs, **attributes)
    given = one_node.feeds(model, inputs)
    for found, wanted in zip(
        parity.run_module(to_torch(model), given), parity.session(model).run(None, given), strict=True
    ):
        assert found.shape == wanted.shape
        # Sigmoid and tanh differ in the last bits, a code would differ by 1e-3.
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("per_channel", [False, True])
def test_directions_and_grids(dtype, direction, per_channel) -> None:
    directions = 2 if direction == "bidirectional" else 1
    check(layer(dtype, directions=directions, per_channel=per_channel), direction=direction)


@pytest.mark.parametrize("attributes", [{"clip": 0.5}, {"input_forget": 1}, {"activations": ["Relu", "Tanh", "Tanh"]}])
def test_attributes(attributes) -> None:
    check(layer(np.uint8), **attributes)


def test_without_states_and_with_peepholes() -> None:
    check(layer(np.uint8, states=False, peepholes=True))


def test_sequence_lengths_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="DynamicQuantizeLSTM \\(sequence lengths"):
        to_torch(make(layer(np.uint8, lengths=True)))
