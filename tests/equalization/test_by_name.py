"""Equalizations that run by name alone, inside insert_qdq."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import onnxqat
from onnxqat.insertion.trial import sqnr
from onnxqat.placement.table_overrides import Overrides
from tests.passes.checks import ort_run

CHANNELS = 16


def chain(first: np.ndarray, bias: np.ndarray, second: np.ndarray) -> onnx.ModelProto:
    """Conv, Relu, Conv without padding."""
    held = {"w": first, "b": bias, "k": second}
    nodes = [
        helper.make_node("Conv", ["v", "w", "b"], ["x"], name="first"),
        helper.make_node("Relu", ["x"], ["y"], name="relu"),
        helper.make_node("Conv", ["y", "k"], ["z"], name="second"),
    ]
    shapes = {"v": ["N", 3, 6, 6], "z": ["N", 8, 4, 4]}
    infos = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, shape) for n, shape in shapes.items()]
    constants = [numpy_helper.from_array(a.astype(np.float32), n) for n, a in held.items()]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def weights() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(CHANNELS, 3, 1, 1)), rng.normal(size=(8, CHANNELS, 3, 3))


def samples(count: int = 32) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(count, 3, 6, 6)).astype(np.float32)


def decibels(model: onnx.ModelProto, equalize: str, **overrides: bool) -> float:
    made = onnxqat.insert_qdq(
        model,
        data={"v": samples()},
        equalize=equalize,
        overrides=Overrides(activation_observer="minmax", **overrides),
        guard=False,
        fast=True,
    )
    feeds = {"v": samples(4)}
    return sqnr(ort_run(made.model, feeds)["z"], ort_run(model, feeds)["z"])


def test_high_biases_are_absorbed(weights: tuple[np.ndarray, np.ndarray]) -> None:
    """One channel lies at 100 and moves by some 10 there, the others at 0: what it does not need is given back."""
    bias = np.zeros(CHANNELS)
    bias[3] = 100
    model = chain(weights[0], bias, weights[1])
    assert decibels(model, "high-bias-absorption") > decibels(model, "none")
    made = onnxqat.insert_qdq(model, data={"v": samples()}, equalize="high-bias-absorption", fast=True)
    assert any("absorbed" in remark.message for remark in made.remarks)
    assert not any("absorbed" in r.message for r in onnxqat.insert_qdq(model, data={"v": samples()}).remarks)


@pytest.mark.parametrize("per_channel", [False, True])
def test_outliers_are_split(weights: tuple[np.ndarray, np.ndarray], per_channel: bool) -> None:
    """Of weights with one scale, else of the activation, one channel is 4 times as large as the others."""
    first, second = (each.copy() for each in weights)
    (first[3:4] if per_channel else second[:, 3])[...] *= 4
    model = chain(first, np.zeros(CHANNELS), second)
    split = decibels(model, "outlier-channel-splitting:0.1", per_channel=per_channel)
    assert split > decibels(model, "none", per_channel=per_channel)


def test_splitting_grows_the_network_by_its_share(weights: tuple[np.ndarray, np.ndarray]) -> None:
    model = chain(weights[0], np.zeros(CHANNELS), weights[1])
    made = onnxqat.insert_qdq(model, data={"v": samples()}, equalize="outlier-channel-splitting:0.25", fast=True)
    shapes = {i.name: tuple(i.dims) for i in made.model.graph.initializer}
    assert (shapes["w"], shapes["k"]) == ((20, 3, 1, 1), (8, 20, 3, 3))
