"""SmoothQuant inside insert_qdq: channels of a LayerNormalization a hundred times as large as the others."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import onnxqat
from onnxqat.insertion.trial import sqnr
from tests.passes.checks import ort_run

CHANNELS, OUTLIERS = 32, [3, 17]


def model(gamma: np.ndarray, weight: np.ndarray, *, bias: bool) -> onnx.ModelProto:
    nodes = [
        helper.make_node("LayerNormalization", ["x", "gamma"], ["n"], name="norm"),
        helper.make_node("MatMul", ["n", "w"], ["p" if bias else "y"], name="product"),
    ]
    held = {"gamma": gamma, "w": weight}
    if bias:
        nodes.append(helper.make_node("Add", ["p", "b"], ["y"], name="sum"))
        held["b"] = np.arange(16) / 8
    infos = [
        helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["N", 10, c]) for n, c in (("x", CHANNELS), ("y", 16))
    ]
    constants = [numpy_helper.from_array(a.astype(np.float32), n) for n, a in held.items()]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def outlying() -> tuple[np.ndarray, np.ndarray]:
    """Scale of the normalization, and a weight for which the outliers count no more than other channels."""
    gamma = np.ones(CHANNELS)
    gamma[OUTLIERS] = 100
    return gamma, np.random.default_rng(0).normal(size=(CHANNELS, 16)) / gamma[:, None]


def samples(count: int = 32) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(count, 10, CHANNELS)).astype(np.float32)


@pytest.mark.parametrize(("backend", "bias"), [("onnxruntime-cpu", True), ("tensorrt", False), ("qnn-htp", False)])
def test_as_good_as_by_hand(outlying: tuple[np.ndarray, np.ndarray], backend: str, bias: bool) -> None:
    gamma, weight = outlying
    factors = np.sqrt(3 * gamma / np.abs(weight).max(axis=1))
    reference, by_hand = model(gamma, weight, bias=bias), model(gamma / factors, weight * factors[:, None], bias=bias)
    wanted = ort_run(reference, {"x": samples(4)})["y"]
    found = {}
    for name, source, equalize in (
        ("auto", reference, "auto"),
        ("by hand", by_hand, "none"),
        ("none", reference, "none"),
    ):
        made = onnxqat.insert_qdq(
            source, backend, data={"x": samples()}, equalize=equalize, guard=False, rounding="nearest"
        )
        found[name] = sqnr(ort_run(made.model, {"x": samples(4)})["y"], wanted)
    assert found["auto"] > found["by hand"] - 2
    assert found["auto"] > found["none"] + 6


def test_even_channels_stay(outlying: tuple[np.ndarray, np.ndarray]) -> None:
    even = model(np.ones(CHANNELS), outlying[1] * outlying[0][:, None], bias=False)
    data = {"x": samples()}
    a, b = (onnxqat.insert_qdq(even, data=data, equalize=e, rounding="nearest").model for e in (True, False))
    assert a.SerializeToString(deterministic=True) == b.SerializeToString(deterministic=True)


def test_the_exponent_follows_the_name(outlying: tuple[np.ndarray, np.ndarray]) -> None:
    source = model(*outlying, bias=False)
    weights = []
    for name in ("smoothquant", "smoothquant:0.5", "smoothquant:0.9"):
        made = onnxqat.insert_qdq(source, data={"x": samples()}, equalize=name, rounding="nearest", guard=False)
        weights.append(next(numpy_helper.to_array(i) for i in made.model.graph.initializer if i.name == "gamma"))
    np.testing.assert_array_equal(weights[0], weights[1])
    assert np.ptp(weights[2]) < np.ptp(weights[0])
