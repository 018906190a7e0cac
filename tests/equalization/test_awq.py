"""AWQ inside insert_qdq: weights of 4 bits that meet activations of unlike size lose less."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import onnxqat
from onnxqat.insertion.trial import sqnr
from tests.passes.checks import ort_run

CHANNELS = 128


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    held = {"gamma": np.exp(rng.normal(size=CHANNELS)), "w": rng.normal(size=(CHANNELS, 16))}
    held["gamma"][[3, 17]] = 30
    nodes = [
        helper.make_node("LayerNormalization", ["x", "gamma"], ["n"], name="norm"),
        helper.make_node("MatMul", ["n", "w"], ["y"], name="product"),
    ]
    shapes = {"x": ["N", 10, CHANNELS], "y": ["N", 10, 16]}
    infos = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, shape) for n, shape in shapes.items()]
    constants = [numpy_helper.from_array(a.astype(np.float32), n) for n, a in held.items()]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def samples(count: int = 16, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, 10, CHANNELS)).astype(np.float32)


def test_less_noise_on_other_data(model: onnx.ModelProto) -> None:
    feeds = {"x": samples(4, seed=2)}
    wanted = ort_run(model, feeds)["y"]
    found = {}
    for name in ("none", "awq"):
        made = onnxqat.insert_qdq(model, "tensorrt-int4", data={"x": samples()}, equalize=name, rounding="nearest")
        found[name] = sqnr(ort_run(made.model, feeds)["y"], wanted)
    assert found["awq"] > found["none"] + 0.5


def test_nothing_to_do_is_said(model: onnx.ModelProto) -> None:
    """Where activations are quantized too, it is SmoothQuant's place."""
    made = onnxqat.insert_qdq(model, "tensorrt", data={"x": samples()}, equalize="awq", fast=True)
    assert any("awq found nothing to equalize" in remark.message for remark in made.remarks)
