"""tie-transposed-weights: one table for the words that go in and the ones that come out."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxqat.passes.tie_transposed_weights import TieTransposedWeights
from tests.passes.checks import check_pass, compare_outputs, parse

TABLE = "float[3,2] w = {1, 2, 3, 4, 5, 6}"
TIED = f"""g (int64[N] ids, float[N,2] x) => (float[N,2] e, float[N,3] y) <{TABLE}> {{
    e = Gather(w, ids) t = Transpose <perm = [1, 0]> (w) y = MatMul(x, t) }}"""


def test_a_transposed_table() -> None:
    check_pass(
        TieTransposedWeights(),
        TIED,
        f"""g (int64[N] ids, float[N,2] x) => (float[N,2] e, float[N,3] y) <{TABLE}> {{
        e = Gather(w, ids) y = Gemm <transB = 1> (x, w) }}""",
        atol=1e-5,
        inside_if="skip",
        inside_function="skip",
    )


def test_a_bias_belongs_to_the_layer_and_more_axes_go_through_rows() -> None:
    text = f"""g (int64[N,4] ids, float[N,4,2] x) => (float[N,4,2] e, float[N,4,3] y) <{TABLE}, float[3] b = {{1, 2, 3}}> {{
        e = Gather(w, ids) t = Transpose <perm = [1, 0]> (w) m = MatMul(x, t) y = Add(m, b) }}"""
    result = TieTransposedWeights().run(parse(text))
    assert [n.op_type for n in result.model.graph.node] == ["Gather", "Reshape", "Gemm", "Reshape"]
    assert result.model.graph.output[1].name == "y"
    compare_outputs(parse(text), result.model, 1e-5)


def test_a_copy_that_an_exporter_transposed() -> None:
    copy = "float[2,3] v = {1, 3, 5, 2, 4, 6}"
    text = f"g (int64[N] ids, float[N,2] x) => (float[N,2] e, float[N,3] y) <{TABLE}, {copy}> {{ e = Gather(w, ids) y = MatMul(x, v) }}"
    result = TieTransposedWeights().run(parse(text))
    assert [i.name for i in result.model.graph.initializer] == ["w"]
    compare_outputs(parse(text), result.model, 1e-5)


@pytest.mark.parametrize(
    "text",
    [
        TIED.replace("e = Gather(w, ids)", "e = Identity(x)"),  # nothing else reads the table
        TIED.replace("y = MatMul(x, t)", "a = MatMul(x, t) s = ReduceSum(t) y = Mul(a, s)"),
        f"g (int64[N] ids, float[N,2] x) => (float[N,2] e, float[N,3] y) <{TABLE}, float[2,3] v = {{1, 3, 5, 2, 4, 7}}> "
        "{ e = Gather(w, ids) y = MatMul(x, v) }",
    ],
)
def test_other_weights_stay(text: str) -> None:
    assert not TieTransposedWeights().run(parse(text)).changed


def test_equal_zeros_are_no_copy() -> None:
    nodes = [helper.make_node("Gather", ["w", "ids"], ["e"]), helper.make_node("MatMul", ["x", "v"], ["y"])]
    stored = {"w": np.zeros((3, 2), np.float32), "v": np.zeros((2, 3), np.float32)}
    inputs = [helper.make_tensor_value_info("ids", 7, ["N"]), helper.make_tensor_value_info("x", 1, ["N", 2])]
    outputs = [helper.make_tensor_value_info("e", 1, ["N", 2]), helper.make_tensor_value_info("y", 1, ["N", 3])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [numpy_helper.from_array(a, n) for n, a in stored.items()])
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert not TieTransposedWeights().run(model).changed
