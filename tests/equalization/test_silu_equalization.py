"""Equalization inside insert_qdq: found by calibration, better numbers, and left out where it cannot be."""

from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import onnxqat
from onnxqat.placement.table_overrides import Overrides
from tests.passes.checks import ort_run

CHANNELS = 8


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    """Conv, SiLU, depthwise Conv: one channel a hundred times as large as the others, its weight behind as small."""
    rng = np.random.default_rng(0)
    first = rng.normal(size=(CHANNELS, 2, 1, 1))
    second = rng.normal(size=(CHANNELS, 1, 3, 3))
    first[3] *= 100
    second[3] /= 100
    constants = {"w": first, "k": second}
    nodes = [
        helper.make_node("Conv", ["v", "w"], ["x"], name="first"),
        helper.make_node("Sigmoid", ["x"], ["g"], name="gate"),
        helper.make_node("Mul", ["x", "g"], ["y"], name="product"),
        helper.make_node("Conv", ["y", "k"], ["z"], name="second", group=CHANNELS),
    ]
    shape = {"v": ["N", 2, 8, 8], "z": ["N", CHANNELS, 6, 6]}
    info = {name: helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, dims) for name, dims in shape.items()}
    held = [numpy_helper.from_array(value.astype(np.float32), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "g", [info["v"]], [info["z"]], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def samples(count: int = 16) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(count, 2, 8, 8)).astype(np.float32)


def error(float_model: onnx.ModelProto, quantized: onnx.ModelProto) -> float:
    """Mean squared error of the small channels, relative to their power."""
    feeds = {"v": samples(4)}
    wanted, found = (np.delete(ort_run(m, feeds)["z"], 3, axis=1) for m in (float_model, quantized))
    return float(np.square(found - wanted).mean() / np.square(wanted).mean())


def restores(quantized: onnx.ModelProto) -> int:
    return sum(n.op_type == "Mul" for n in quantized.graph.node) - 1


@pytest.mark.parametrize("backend", ["onnxruntime-cpu", "tensorrt", "openvino-cpu", "qnn-htp"])
def test_small_channels_keep_their_codes(model: onnx.ModelProto, backend: str) -> None:
    overrides = Overrides(activation_observer="minmax")  # the range that covers all channels
    with_it, without = (
        onnxqat.insert_qdq(
            model, backend, data={"v": samples()}, overrides=overrides, equalize=on, guard=False, fast=True
        )
        for on in (True, False)
    )
    assert (restores(with_it.model), restores(without.model)) == (1, 0)
    # The step that all channels share is about 1/100 of what it was, the rest of the error is that of other steps.
    assert error(model, with_it.model) < error(model, without.model) / 20
    assert any("equalized" in remark.message and remark.nodes == ("first",) for remark in with_it.remarks)


def test_exact_scales(model: onnx.ModelProto) -> None:
    """The factors lie on the grid of a power-of-two scale: the constant of the product loses nothing."""
    result = onnxqat.insert_qdq(model, data={"v": samples()}, overrides=Overrides(exact=True))
    constants = {i.name: numpy_helper.to_array(i) for i in result.model.graph.initializer}
    factors = constants["x_factors"]
    scale = constants[next(name for name in constants if name.startswith("x_factors") and name.endswith("_scale"))]
    np.testing.assert_array_equal(np.rint(factors / scale) * scale, factors)


def test_left_out_nodes_stay_as_they_are(model: onnx.ModelProto) -> None:
    overrides = Overrides(exclude=("first",))
    assert restores(onnxqat.insert_qdq(model, data={"v": samples()}, overrides=overrides).model) == 0


def test_weights_per_tensor(model: onnx.ModelProto) -> None:
    overrides = Overrides(per_channel=False)
    assert restores(onnxqat.insert_qdq(model, data={"v": samples()}, overrides=overrides).model) == 0


def test_data_that_can_be_read_once(model: onnx.ModelProto) -> None:
    def batches() -> Iterator[np.ndarray]:
        yield samples()

    result = onnxqat.insert_qdq(model, data=batches())
    assert restores(result.model) == 0
    assert any("read only once" in remark.message for remark in result.remarks)
    assert restores(onnxqat.insert_qdq(model, data=batches).model) == 1


def test_random_data_decides_nothing(model: onnx.ModelProto) -> None:
    assert restores(onnxqat.insert_qdq(model, random_data=True).model) == 0


def test_odd_sums(model: onnx.ModelProto) -> None:
    """HTP rounds ties of products up, and these meet none. That MatMul has one scale a tensor there is no matter."""
    result = onnxqat.insert_qdq(model, "qnn-htp", data={"v": samples()}, overrides=Overrides(exact=True))
    assert restores(result.model) == 1
