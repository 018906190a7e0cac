"""deploy-form and train-form: each comes back from the other, bit for bit."""

import numpy as np
import onnx
import pytest

from onnxqat.graph import io, qdq
from onnxqat.passes.deploy_form import DeployForm
from onnxqat.passes.train_form import TrainForm
from onnxqat.types import QType
from tests.passes.checks import compare_graphs, compare_outputs, constants, imports, node_text, parse, run_checked
from tests.passes.quantized import quantized

GRIDS = [
    QType("int8", -128, 127),
    QType("int8", -127, 127),
    QType("int8", -8, 7),
    QType("int4", -8, 7),
    QType("int16", -32768, 32767),
]


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("per_channel", [True, False])
def test_deploy_stores_integers(grid: QType, per_channel: bool) -> None:
    model = quantized(grid, per_channel=per_channel)
    result = run_checked(DeployForm(), model, 0.0).model
    found = {q.tensor: q for q in qdq.quantizers(io.load(result))}
    assert found["w_DequantizeLinear_Output"].stored
    assert "w" not in constants(result.graph)
    tensor = next(i for i in result.graph.initializer if i.name == "w_quantized")
    assert tensor.data_type == onnx.TensorProto.DataType.Value(grid.storage.upper())


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("per_channel", [True, False])
def test_train_to_deploy_to_train(grid: QType, per_channel: bool) -> None:
    train = quantized(grid, snap=True, per_channel=per_channel)
    deploy = DeployForm().run(train).model
    again = run_checked(TrainForm(), deploy, 0.0).model
    compare_outputs(train, again, 0.0)
    assert {n.name: node_text(n) for n in again.graph.node} == {n.name: node_text(n) for n in train.graph.node}
    mine, theirs = constants(again.graph), constants(train.graph)
    assert mine.keys() == theirs.keys()
    for name in mine:
        np.testing.assert_array_equal(mine[name], theirs[name], err_msg=name)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_deploy_to_train_to_deploy(grid: QType) -> None:
    deploy = DeployForm().run(quantized(grid)).model
    again = DeployForm().run(TrainForm().run(deploy).model).model
    compare_graphs(again.graph, deploy.graph)
    assert {n.name for n in again.graph.node} == {n.name for n in deploy.graph.node}
    assert (imports(again), again.ir_version) == (imports(deploy), deploy.ir_version)


def test_inputs_omitted_at_the_end_have_no_name() -> None:
    nodes = "a = Gemm(x, w,)  b = Clip(a, , top)  y = Clip(b, ,)".replace(",)", ', "")').replace(", ,", ', "",')
    text = f"g (float[2,2] x) => (float[2,2] y) <float[2,2] w = {{1, 2, 3, 4}}, float top = {{6}}> {{ {nodes} }}"
    result = run_checked(DeployForm(), parse(text), 0.0).model
    assert [list(n.input) for n in result.graph.node] == [["x", "w"], ["a", "", "top"], ["b"]]


def test_opset_is_as_low_as_the_contents_allow() -> None:
    eight, four = quantized(GRIDS[0]), quantized(GRIDS[3])
    result = DeployForm().run(eight).model
    assert (imports(result), result.ir_version) == ({"": 14}, 7)  # Relu 14, per-channel Q/DQ 13, Conv 11
    result = DeployForm().run(four).model
    assert (imports(result), result.ir_version) == ({"": 21}, 10)


def test_versions_that_only_added_types_do_not_count() -> None:
    text = """<ir_version: 11, opset_import: ["" : 23]> g (float[1,1,4,4] x) => (float[1,1,2,2] y)
        <float[1,1,1,1] w = {2}, float[1,1,4,4] t, float[1,1,4,4] u> {
        t = Conv(x, w) u = Identity(t) y = MaxPool <kernel_shape = [2, 2], strides = [2, 2]%s> (u) }"""
    before = parse(text % "")
    result = DeployForm().run(before).model
    assert (imports(result), result.ir_version) == ({"": 16}, 8)  # Identity 16, MaxPool 12, Conv 11
    compare_outputs(before, result, 0.0)
    assert imports(DeployForm().run(parse(text % ", ceil_mode = 1")).model) == {"": 22}
    half = text.replace("float[", "bfloat16[") % ""
    assert imports(DeployForm().run(parse(half)).model) == {"": 22}


def test_bias_can_be_float() -> None:
    model = quantized()
    result = run_checked(DeployForm(bias="float"), model, 0.0).model
    assert constants(result.graph)["b"].dtype == np.float32
    assert next(n for n in result.graph.node if n.op_type == "Conv").input[2] == "b"


def test_a_bias_that_leaves_the_graph_stays_in_integers() -> None:
    model = quantized()
    layer = next(n for n in model.graph.node if n.op_type == "Conv")
    model.graph.output.append(onnx.helper.make_tensor_value_info(layer.input[2], onnx.TensorProto.FLOAT, ["C"]))
    result = run_checked(DeployForm(bias="float"), model, 0.0).model
    assert layer.input[2] in {output for node in result.graph.node for output in node.output}


def test_metadata_can_be_stripped() -> None:
    result = run_checked(DeployForm(strip_metadata=True), quantized(GRIDS[2]), 0.0).model
    assert not any(n.metadata_props for n in result.graph.node)


def test_a_float_weight_that_others_read_stays() -> None:
    text = """g (float[2,2] x) => (float[2,2] y) <float[2,2] w = {1, 2, 3, 4}, float s = {0.5}, int8 z = {0}> {
        q = QuantizeLinear(w, s, z) d = DequantizeLinear(q, s, z) t = MatMul(x, d) y = Add(t, w) }"""
    result = run_checked(DeployForm(), parse(text), 0.0).model
    assert sorted(constants(result.graph)) == ["q", "s", "w", "z"]
    back = run_checked(TrainForm(), result, 0.0).model
    assert {"w", "w_1"} <= constants(back.graph).keys()


def test_one_stored_constant_behind_two_nodes_is_one_weight() -> None:
    text = """g (float[2,2] x) => (float[2,2] y) <int8[2,2] w_quantized = {1, 2, 3, 4}, float s = {0.5}, int8 z = {0}> {
        d = DequantizeLinear(w_quantized, s, z) t = MatMul(x, d)
        e = DequantizeLinear(w_quantized, s, z) y = MatMul(t, e) }"""
    result = run_checked(TrainForm(), parse(text), 0.0).model
    assert sorted(constants(result.graph)) == ["s", "w", "z"]
    assert sum(n.op_type == "QuantizeLinear" for n in result.graph.node) == 1


def test_narrow_grid_that_clip_cannot_write_stays_stored() -> None:
    model = parse(
        """<ir_version: 10, opset_import: ["" : 21]>
        g (float[2,2] x) => (float[2,2] y) <int8[2,2] w_quantized = {1, 2, 3, 4}, float s = {0.5}> {
        q = Cast <to = 22> (w_quantized) d = DequantizeLinear(q, s) y = MatMul(x, d) }"""
    )
    codes = onnx.helper.make_tensor("q", onnx.TensorProto.INT4, [2, 2], [1, 2, 3, 4])
    del model.graph.node[0], model.graph.initializer[0]
    model.graph.initializer.append(codes)
    for key, value in (("onnxqat.quant_min", "-7"), ("onnxqat.quant_max", "7")):
        model.graph.node[0].metadata_props.add(key=key, value=value)
    assert not TrainForm().run(model).changed


def test_float_graph_is_left_alone() -> None:
    model = parse('<ir_version: 7, opset_import: ["" : 14]> g (float[4] x) => (float[4] y) { y = Relu(x) }')
    assert not DeployForm().run(model).changed
    assert not TrainForm().run(model).changed
