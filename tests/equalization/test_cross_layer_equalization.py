"""Cross-layer equalization inside insert_qdq: as good as by hand, and left out where it does not help."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import onnxqat
from onnxqat.insertion.trial import sqnr
from onnxqat.placement.table_overrides import Overrides
from tests.passes.checks import ort_run

CHANNELS = 16


def chain(sizes: np.ndarray, **names: Any) -> onnx.ModelProto:
    """Conv, Relu, Conv, with channels between of `sizes` and weights behind of one over them: all are one function."""
    rng = np.random.default_rng(0)
    first = rng.normal(size=(CHANNELS, 3, 3, 3)) * sizes[:, None, None, None]
    second = rng.normal(size=(8, CHANNELS, 3, 3)) / sizes[None, :, None, None]
    held = [numpy_helper.from_array(a.astype(np.float32), n) for n, a in (("w", first), ("k", second))]
    nodes = [
        helper.make_node("Conv", ["v", "w"], ["x"], name="first", pads=[1] * 4),
        helper.make_node("Relu", ["x"], ["y"], name="relu"),
        helper.make_node("Conv", ["y", "k"], ["z"], name="second", pads=[1] * 4),
    ]
    infos = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["N", c, 8, 8]) for n, c in (("v", 3), ("z", 8))]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


UNEVEN, EVEN = np.logspace(0, 2, CHANNELS), np.ones(CHANNELS)


def samples(count: int = 32) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(count, 3, 8, 8)).astype(np.float32)


def decibels(float_model: onnx.ModelProto, quantized: onnx.ModelProto) -> float:
    feeds = {"v": samples(4)}
    return sqnr(ort_run(quantized, feeds)["z"], ort_run(float_model, feeds)["z"])


@pytest.mark.parametrize("backend", ["onnxruntime-cpu", "vitis-dpu", "qnn-htp"])
def test_as_good_as_by_hand(backend: str) -> None:
    made = [
        onnxqat.insert_qdq(
            chain(sizes), backend, data={"v": samples()}, equalize=equalize, guard=False, rounding="nearest"
        )
        for sizes, equalize in ((UNEVEN, True), (EVEN, True), (UNEVEN, False))
    ]
    found, by_hand, without = (decibels(chain(EVEN), each.model) for each in made)
    assert found > by_hand - 2
    assert found > without + 6
    assert any("equalized between" in r.message and r.nodes == ("first",) for r in made[0].remarks)


def test_even_channels_stay_byte_for_byte() -> None:
    model, data = chain(EVEN), {"v": samples()}
    a, b = (onnxqat.insert_qdq(model, data=data, equalize=e, rounding="nearest").model for e in (True, False))
    assert a.SerializeToString(deterministic=True) == b.SerializeToString(deterministic=True)


def test_across_a_bound_that_cuts_no_channel() -> None:
    """Weights with one scale are equalized through a Clip that data do not reach, which stays a Clip."""
    model = chain(UNEVEN / 100)
    relu = next(node for node in model.graph.node if node.op_type == "Relu")
    relu.op_type = "Clip"
    relu.input.extend(["zero", "six"])
    model.graph.initializer.extend(numpy_helper.from_array(np.float32(v), n) for n, v in (("zero", 0), ("six", 60)))
    data = {"v": samples()}
    made, without = (onnxqat.insert_qdq(model, "tidl", data=data, equalize=e, guard=False) for e in (True, False))
    assert any("equalized between" in r.message for r in made.remarks)
    assert [node.op_type for node in made.model.graph.node].count("Clip") == 1
    assert decibels(model, made.model) > decibels(model, without.model) + 6


def test_left_out_nodes_and_none() -> None:
    data = {"v": samples()}
    for keywords in ({"overrides": Overrides(exclude=("second",))}, {"equalize": "none"}, {"fast": True}):
        made = onnxqat.insert_qdq(chain(UNEVEN), data=data, rounding="nearest", **keywords)
        assert not any("equalized" in r.message for r in made.remarks)


def test_too_few_samples_tell_nothing() -> None:
    """A name is an order; auto wants to see that it helps."""
    data = {"v": samples(8)}
    auto = onnxqat.insert_qdq(chain(UNEVEN), data=data, rounding="nearest")
    assert any("held-out" in r.message for r in auto.remarks)
    named = onnxqat.insert_qdq(chain(UNEVEN), data=data, fast=True, equalize="cross-layer-equalization")
    assert any("equalized between" in r.message for r in named.remarks)


def test_by_name_without_data() -> None:
    """Weights with one scale are equalized by themselves; those with a scale per channel have nothing to gain."""
    for per_channel in (False, True):
        made = onnxqat.insert_qdq(
            chain(UNEVEN),
            random_data=True,
            overrides=Overrides(per_channel=per_channel),
            equalize="cross-layer-equalization",
        )
        assert any("equalized between" in r.message for r in made.remarks) != per_channel
