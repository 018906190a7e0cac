"""Normalization layers: the forms that the node tests of ONNX leave out."""

import numpy as np
import onnx.parser
import pytest
import torch

from onnxqat.bridge.importing.importer import to_torch
from onnxqat.errors import ModelError, UnsupportedError
from tests.bridge import one_node, parity

RANDOM = np.random.default_rng(0)
STATISTICS = ("mean", "var")
NINE = ("y", "mean_after", "var_after", "saved_mean", "saved_var")


def batch(*shape, dtype=np.float32):
    channels = shape[1]
    made = {"x": RANDOM.standard_normal(shape)} | {n: RANDOM.random(channels) + 0.5 for n in ("s", "b", "mean", "var")}
    return {name: array.astype(dtype) for name, array in made.items()}


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5), (2, 3, 4, 5), (1, 3, 2, 2, 2)])
def test_training_mode_moves_the_statistics_by_those_of_the_population(shape) -> None:
    inputs = batch(*shape)
    outputs = {"y": 1, "mean_after": 1, "var_after": 1}
    model = one_node.make(
        "BatchNormalization", inputs, outputs=outputs, constants=STATISTICS, training_mode=1, momentum=0.8
    )
    y, mean, variance = parity.run_module(to_torch(model), one_node.feeds(model, inputs))
    axes = tuple(a for a in range(len(shape)) if a != 1)
    x, broadcast = inputs["x"].astype(np.float64), [1, -1] + [1] * (len(shape) - 2)
    np.testing.assert_allclose(mean, 0.8 * inputs["mean"] + 0.2 * x.mean(axes), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(variance, 0.8 * inputs["var"] + 0.2 * x.var(axes), rtol=1e-5, atol=1e-6)
    normal = (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-5)
    wanted = normal * inputs["s"].reshape(broadcast) + inputs["b"].reshape(broadcast)
    np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-5)


def test_training_mode_reduces_float16_in_float32() -> None:
    inputs = batch(64, 2, 64, dtype=np.float16)
    inputs["x"] += np.float16(60)
    outputs = {"y": 10, "mean_after": 10, "var_after": 10}
    model = one_node.make(
        "BatchNormalization", inputs, outputs=outputs, constants=STATISTICS, training_mode=1, momentum=0.0
    )
    _, _, variance = parity.run_module(to_torch(model), one_node.feeds(model, inputs))
    np.testing.assert_allclose(variance, inputs["x"].astype(np.float64).var((0, 2)), rtol=1e-3)


def test_computed_statistics_get_gradients() -> None:
    inputs = batch(4, 3, 5)
    model = one_node.make("BatchNormalization", inputs)
    module = to_torch(model)
    leaves = [torch.from_numpy(a).requires_grad_() for a in inputs.values()]
    module(*leaves).square().sum().backward()
    assert all(leaf.grad is not None and leaf.grad.any() for leaf in leaves)
    parity.check(model, inputs)


def test_a_mean_that_is_beta_too_trains_and_is_no_statistic() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[4,3,5] x) => (float[4,3,5] y)
        <float[3] one = {1, 1, 1}, float[3] zero = {0, 0, 0}> { y = BatchNormalization(x, one, zero, zero, one) }"""
    model = onnx.parser.parse_model(text)
    module = parity.check(model)
    x = torch.from_numpy(batch(4, 3, 5)["x"])
    for training in (False, True):
        module.train(training)
        module.zero_grad()
        (module(x) * x).sum().backward()
        assert all(p.grad is not None and p.grad.any() for p in module.parameters())
    assert not module.get_parameter("zero").any()


def test_training_before_version_14_is_refused() -> None:
    inputs = batch(4, 3)
    with pytest.raises(UnsupportedError, match="outputs of training mode"):
        to_torch(one_node.make("BatchNormalization", inputs, outputs=dict.fromkeys(NINE, 1), opset=9, rank=1))
    with pytest.raises(UnsupportedError, match="is_test=0"):
        to_torch(one_node.make("BatchNormalization", inputs, opset=6, rank=2))


@pytest.mark.parametrize("op_type", ["LayerNormalization", "SimplifiedLayerNormalization"])
def test_norms_that_onnxruntime_writes_into_opsets_without_them(op_type) -> None:
    inputs = {"x": RANDOM.standard_normal((2, 3, 8)).astype(np.float32), "scale": RANDOM.random(8).astype(np.float32)}
    inputs["bias"] = RANDOM.random(8).astype(np.float32) if op_type == "LayerNormalization" else None
    parity.check(one_node.make(op_type, inputs, constants=["scale", "bias"], opset=12, rank=3), {"x": inputs["x"]})


def test_other_operators_of_a_later_opset_are_not_taken() -> None:
    inputs = {"x": RANDOM.standard_normal((2, 3, 8)).astype(np.float32)}
    with pytest.raises(ModelError, match="No Op registered for Gelu"):
        to_torch(one_node.make("Gelu", inputs, opset=12, rank=3))


def test_mean_variance_normalization_refuses_axes_that_the_input_lacks() -> None:
    model = one_node.make("MeanVarianceNormalization", {"x": np.ones((2, 3, 4), np.float32)}, rank=3)
    with pytest.raises(UnsupportedError, match="of 3 dimensions"):
        to_torch(model)


@pytest.mark.parametrize(("shape", "of_each", "opset"), [((5,), (1,), 15), ((2, 3, 5), (3, 5), 8)])
def test_a_vector_is_one_channel_and_not_spatial_means_each_element(shape, of_each, opset) -> None:
    inputs = {"x": RANDOM.standard_normal(shape)} | {n: RANDOM.random(of_each) + 0.5 for n in ("s", "b", *STATISTICS)}
    inputs = {name: array.astype(np.float32) for name, array in inputs.items()}
    options = {"spatial": 0} if opset == 8 else {}
    made = one_node.make(
        "BatchNormalization", inputs, constants=list(inputs)[1:], opset=opset, rank=len(shape), **options
    )
    parity.check(made, {"x": inputs["x"]})
