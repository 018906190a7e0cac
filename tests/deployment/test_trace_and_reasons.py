"""Extra outputs change nothing, differences go to the nodes that made them, and reasons are those of the file."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnxqat.deployment import base_compiler, float_reasons, node_trace
from onnxqat.deployment.base_compiler import NodeResult
from onnxqat.deployment.static_model import static_copy
from onnxqat.deployment.workarounds import imx500_quantizers
from onnxqat.errors import CheckError
from onnxqat.graph import io
from onnxqat.graph.build import LEFT_FLOAT
from onnxqat.runtime.session import Session
from tests.validation import tiny

FEEDS = {"image": tiny.images(1)}


def test_taps_are_the_quantized_tensors() -> None:
    model = tiny.pair()[1]
    before = model.SerializeToString()
    made, taps = node_trace.tapped(model)
    assert model.SerializeToString() == before
    onnx.checker.check_model(made, full_check=True)
    assert [n.SerializeToString() for n in made.graph.node[: len(model.graph.node)]] == [
        n.SerializeToString() for n in model.graph.node
    ]
    plain, extended = (Session(io.load(m), optimize=False).run(FEEDS) for m in (model, made))
    assert np.array_equal(plain["logits"], extended["logits"])
    nodes = {name for tap in taps for name in tap.nodes}
    assert {"Conv_conv1", "Relu_relu1", "Conv_conv2", "Add_added", "GlobalAveragePool_pooled"} <= nodes
    assert all(extended[tap.output].size and tap.step > 0 for tap in taps)
    assert not any("image" in tap.output for tap in taps)


def test_differences_go_to_the_nodes_above() -> None:
    taps = [node_trace.Tap("a", ("relu", "conv"), 0.5), node_trace.Tap("b", ("pool",), 0.1)]
    reference = [{"a": np.zeros(3, np.float32), "b": np.zeros(2, np.float32)}]
    found = [{"a": np.array([0, 1, -1.5], np.float32), "b": np.array([np.nan, 0], np.float32)}]
    nodes = [NodeResult(name, "X", "integer", "") for name in ("conv", "relu", "pool", "other")]
    own = [found[0] | {"b": np.array([np.nan, 0.2], np.float32)}]
    made = node_trace.with_steps(nodes, taps, found, reference, own)
    assert {n.name: n.steps for n in made} == {"conv": 3.0, "relu": 3.0, "pool": np.inf, "other": None}
    assert {n.name: n.own_steps for n in made} == {"conv": 0.0, "relu": 0.0, "pool": np.inf, "other": None}


def test_forced_nodes_compute_from_what_they_are_given() -> None:
    tapped, taps = node_trace.tapped(tiny.pair()[1])
    model, sources = node_trace.forced(tapped, taps)
    onnx.checker.check_model(model, full_check=True)
    assert set(sources.values()) == {tap.output for tap in taps}
    whole = Session(io.load(tapped), optimize=False).run(FEEDS)
    session = Session(io.load(model), optimize=False)
    same = session.run(FEEDS | {name: whole[tap] for name, tap in sources.items()})
    assert all(np.array_equal(whole[name], value) for name, value in same.items())
    first = next(n for n, tap in sources.items() if tap == taps[0].output)
    other = session.run(FEEDS | {name: whole[tap] * (name != first) for name, tap in sources.items()})
    assert np.array_equal(other[taps[0].output], whole[taps[0].output])  # it is computed from the image as before
    assert not np.array_equal(other[taps[1].output], whole[taps[1].output])


@pytest.fixture
def graph() -> onnx.ModelProto:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], name="Q"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], name="DQ"),
        helper.make_node("Add", ["d", "other"], ["sum"], name="bare_input"),
        helper.make_node("Sub", ["d", "d"], ["left"], name="no_kernel"),
        helper.make_node("Add", ["d", "d"], ["twice"], name="activation"),
        helper.make_node("HardSwish", ["twice"], ["swish"], name="swish"),
        helper.make_node("Concat", ["d", "d"], ["joined"], name="leaves", axis=0),
        helper.make_node("Mul", ["d", "d"], ["product"], name="placed"),
        helper.make_node("Exp", ["sum"], ["e"], name="reader"),
    ]
    nodes[7].metadata_props.add(key=LEFT_FLOAT, value="the user excluded it")
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in ("x", "other")]
    outputs = [helper.make_tensor_value_info("joined", TensorProto.FLOAT, [8])]
    constants = [
        helper.make_tensor("s", TensorProto.FLOAT, [], [0.1]),
        helper.make_tensor("z", TensorProto.UINT8, [], [0]),
    ]
    return helper.make_model(helper.make_graph(nodes, "g", values, outputs, constants))


def test_reasons(graph: onnx.ModelProto) -> None:
    compiler = base_compiler.load("onnxruntime-cpu")
    names = ("bare_input", "no_kernel", "activation", "leaves", "placed")
    nodes = [NodeResult(name, "X", "float", "Kernel") for name in names]
    why = {n.name: n.why for n in float_reasons.explained(nodes, graph, compiler)}
    assert why["bare_input"] == "its input 'other' carries no Q/DQ; its output 'sum' is read by Exp without Q/DQ"
    assert why["no_kernel"] == "onnxruntime-cpu has no integer kernel for Sub"
    assert why["activation"] == "the HardSwish 'swish' stands between it and Q"
    assert why["leaves"] == "its output 'joined' leaves the graph without Q/DQ"
    assert why["placed"] == "placement left it in float: the user excluded it"
    kept = float_reasons.explained([NodeResult("activation", "Add", "integer", "QLinearAdd")], graph, compiler)
    assert kept[0].why == ""


def test_mct_operators_say_the_same_numbers(tmp_path: object) -> None:
    model = tiny.pair(symmetric=True)[1]
    with pytest.raises(CheckError, match="powers of two"):
        imx500_quantizers.rewritten(model)
    for tensor in model.graph.initializer:
        if tensor.name.endswith("_scale"):
            scale = np.exp2(np.ceil(np.log2(onnx.numpy_helper.to_array(tensor))))
            tensor.CopyFrom(onnx.numpy_helper.from_array(scale.astype(np.float32), tensor.name))
    path = f"{tmp_path}/model.onnx"
    from onnxqat.backends import schema
    from onnxqat.deployment.deploy import deploy_form

    io.save(deploy_form(io.load(model), schema.load("tensorrt"), []), path)
    static = static_copy(path, FEEDS)  # type: ignore[arg-type]
    made = imx500_quantizers.rewritten(static)
    kinds = {n.op_type for n in made.graph.node}
    assert {"ActivationPOTQuantizer", "WeightsPOTQuantizer"} <= kinds
    assert not kinds & {"QuantizeLinear", "DequantizeLinear"}
    assert [v.name for v in made.graph.output] == ["logits"]
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in made.graph.initializer}
    for node in made.graph.node:
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        if node.op_type == "WeightsPOTQuantizer":
            values, threshold = (constants[name] for name in node.input)
            codes = values / (threshold / 128).reshape(-1, *[1] * (values.ndim - 1))
            assert np.array_equal(codes, np.rint(codes))
            assert np.abs(codes).max() <= 128
        elif node.op_type == "ActivationPOTQuantizer":
            assert np.frexp(attributes["threshold"])[0] == 0.5
            assert (attributes["signed"], attributes["num_bits"]) == (1, 8)
        assert node.name.replace("_", "").isalnum()


def test_mct_operators_have_no_zero_points() -> None:
    model = tiny.pair()[1]
    for tensor in model.graph.initializer:
        if tensor.name.endswith("_scale"):
            shape = onnx.numpy_helper.to_array(tensor).shape
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.full(shape, 0.5, np.float32), tensor.name))
    with pytest.raises(CheckError, match="no zero points"):
        imx500_quantizers.rewritten(model)


def test_reasons_of_a_deep_graph() -> None:
    nodes = [helper.make_node("Relu", [f"t{i}"], [f"t{i + 1}"], name=f"n{i}") for i in range(3000)]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in ("t0", "t3000")]
    model = helper.make_model(helper.make_graph([*nodes], "g", values[:1], values[1:]))
    found = float_reasons.explained([NodeResult("n2999", "Add", "float", "Add")], model, base_compiler.load("tract"))
    assert found[0].why.startswith("its input 't2999' carries no Q/DQ")
