"""What a file states and its data or the specification contradict."""

from itertools import count

import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import helper

import onnxqat
from onnxqat.errors import ModelError, QatError
from onnxqat.graph import edit, io, qdq

TEXT = """<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) <float s = {0.5}, uint8 z = {3}> {
    q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }"""


def model() -> onnx.ModelProto:
    return onnx.parser.parse_model(TEXT)


def test_initializers_have_the_types_of_their_data() -> None:
    proto = model()
    proto.graph.value_info.append(helper.make_tensor_value_info("z", onnx.TensorProto.INT64, [99, 99]))
    graph = io.load(proto).graph
    assert (graph.initializers["z"].dtype, graph.initializers["z"].shape) == (ir.DataType.UINT8, ir.Shape([]))


def test_an_undefined_element_type_states_nothing() -> None:
    proto = model()
    proto.graph.input[0].type.tensor_type.elem_type = 0
    assert io.load(proto).graph.inputs[0].dtype is None


def test_a_model_without_outputs_is_refused() -> None:
    proto = model()
    del proto.graph.output[:]
    with pytest.raises(ModelError, match="no outputs"):
        io.load(proto)


def test_two_versions_of_one_operator_set_are_refused() -> None:
    proto = model()
    proto.opset_import.add(domain="ai.onnx", version=10)
    with pytest.raises(ModelError, match="versions 10 and 17"):
        io.load(proto)
    proto.opset_import[-1].version = 17
    io.load(proto)


def test_int32_has_no_zero_point() -> None:
    text = TEXT.replace("uint8 z = {3}", "int32 z = {3}, int32[2] q = {1, 2}").replace(
        "q = QuantizeLinear(x, s, z)", ""
    )
    proto = onnx.parser.parse_model(text)
    assert not qdq.quantizers(io.load(proto))
    proto.graph.initializer[1].int32_data[0] = 0
    assert qdq.quantizers(io.load(proto))


@pytest.mark.parametrize("kind", ["float16", "int64", "bool"])
def test_a_zero_point_of_no_code_is_of_the_file(kind: str) -> None:
    proto = onnx.parser.parse_model(TEXT.replace("uint8 z = {3}", f"{kind} z = {{1}}"))
    with pytest.raises(ModelError, match="zero point 'z'") as error:
        onnxqat.insert_qdq(proto, random_data=True, replace=True)
    assert error.value.code == "model-invalid"


@pytest.mark.parametrize("axis", [2, -3, 2**63 - 1])
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax", "LpNormalization"])
def test_an_axis_outside_of_the_rank_is_refused(op: str, axis: int) -> None:
    text = (
        f'<ir_version: 8, opset_import: ["": 17]> g (float[2,2] x) => (float[2,2] y) {{ y = {op}<axis = {axis}>(x) }}'
    )
    with pytest.raises(QatError, match="axis"):
        onnxqat.to_torch(onnx.parser.parse_model(text))


@pytest.mark.parametrize("text", ["(x, one, none)", "(x, other)", "(scalar, one)"])
def test_what_does_not_spread_over_the_normalized_axes_is_refused(text: str) -> None:
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[2,3] x, float scalar) => (float y)
        <float[1] one = {{1}}, float[0] none = {{}}, float[2] other = {{1, 1}}> {{ y = LayerNormalization{text} }}"""
    with pytest.raises(QatError, match="LayerNorm"):
        onnxqat.to_torch(onnx.parser.parse_model(text))


def test_data_movement_that_nothing_reads_has_no_wish() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[1,2,2,2] x) => (float[1,2,2,2] y)
        <float[2,2,1,1] w = {1, 2, 3, 4}, int64[4] n = {1, 2, 2, 2}> {
        t = Conv(x, w) y = Reshape(t, n) u = Reshape(t, n) }"""
    onnxqat.insert_qdq(onnx.parser.parse_model(text), random_data=True)
    text = text.replace("y = Reshape(t, n)", "y = Conv(x, w)")
    onnxqat.insert_qdq(onnx.parser.parse_model(text), random_data=True)


def test_inputs_of_a_wide_node_are_exchanged_as_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, replace = count(), ir.Node.replace_input_with
    monkeypatch.setattr(ir.Node, "replace_input_with", lambda *given: (next(calls), replace(*given))[1])
    for size in (3, 2 * edit.WIDE):
        old, new = ir.val("old"), ir.val("new")
        other = [ir.val(f"v{i}") for i in range(size - 2)]
        node = ir.Node("", "Concat", [old, *other, old])
        edit.rewire(old.uses(), new)
        assert list(node.inputs) == [new, *other, new]
        assert [tuple(use) for use in new.uses()] == [(node, 0), (node, size - 1)]
        assert not old.uses()
    assert next(calls) == 2  # a narrow node's two


def test_a_branch_of_if_has_no_inputs() -> None:
    branch = "{} () => (float[2] t) {{ t = Mul(x, c) }}"
    body = f"y = If(b) <then_branch = {branch.format('then')}, else_branch = {branch.format('else')}>"
    proto = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g (float[2] x, bool b) => (float[2] y) <float c = {{2}}> {{ {body} }}'
    )
    graph = proto.graph.node[0].attribute[0].g
    graph.initializer.append(proto.graph.initializer[0])
    graph.input.add(name="c").type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    found = onnxqat.to_torch(proto)(torch.ones(2), torch.tensor(True))
    assert found.tolist() == [2, 2]


def test_an_output_that_is_an_input_has_its_shape() -> None:
    proto = model()
    proto.graph.output.append(helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 6]))
    assert io.load(proto).graph.inputs[0].shape == ir.Shape([2])
