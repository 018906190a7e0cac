"""lift-constants: weights are initializers whatever the exporter wrote."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxqat.graph import io
from onnxqat.passes import lift_constants
from onnxqat.passes.close_initializers import CloseInitializers
from onnxqat.passes.lift_constants import LiftConstants
from tests.passes.checks import check_pass, compare_outputs, ort_run, parse


def test_constant_becomes_initializer() -> None:
    check_pass(
        LiftConstants(),
        "g (float[N,2] x) => (float[N,2] y) { w = Constant <value = float[2] {1, 2}> () y = Mul(x, w) }",
        "g (float[N,2] x) => (float[N,2] y) <float[2] w = {1, 2}> { y = Mul(x, w) }",
        inside_function="left",
    )


@pytest.mark.parametrize("attribute", ["value_float = 2.0", "value_floats = [2.0, 3.0]"])
def test_number_attributes(attribute: str) -> None:
    text = f"g (float[N,2] x) => (float[N,2] y) {{ w = Constant <{attribute}> () y = Mul(x, w) }}"
    result = LiftConstants().run(parse(text))
    assert [i.name for i in result.model.graph.initializer] == ["w"]
    compare_outputs(parse(text), result.model, 0)


def test_integer_constants_are_lifted_and_shape_arithmetic_is_computed() -> None:
    before = """g (float[4] x) => (float[2,2] y) {
        a = Constant <value_ints = [2]> () s = Concat <axis = 0> (a, a) y = Reshape(x, s) }"""
    after = "g (float[4] x) => (float[2,2] y) <int64[2] s = {2, 2}> { y = Reshape(x, s) }"
    check_pass(LiftConstants(), before, after, inside_function="left")


def test_weight_behind_cast_and_transpose_is_computed() -> None:
    check_pass(
        LiftConstants(),
        """g (float[N,2] x) => (float[N,3] y) <double[3,2] h = {1, 2, 3, 4, 5, 6}> {
        c = Cast <to = 1> (h) w = Transpose <perm = [1, 0]> (c) y = MatMul(x, w) }""",
        "g (float[N,2] x) => (float[N,3] y) <float[2,3] w = {1, 3, 5, 2, 4, 6}> { y = MatMul(x, w) }",
        inside_function="left",
    )


@pytest.mark.parametrize(
    "made",
    [
        "n = ReduceL2 <axes = [1]> (v) u = Div(v, n) w = Mul(u, g)",  # weight normalization
        "m = ReduceMean <axes = [1]> (v) c = Sub(v, m) q = Mul(c, c) s = ReduceMean <axes = [1]> (q) r = Sqrt(s) w = Div(c, r)",
        "s = MatMul(v, v) w = Add(v, s)",  # a low-rank sum
        "z = Abs(v) t = Greater(z, g) w = Where(t, v, g)",  # pruned
        "s = Sign(v) w = Mul(s, g)",  # binary
        # banks of filters, from the few values that are not 0
        "p = Constant <value = int64[1,2] {1, -2}> () u = Constant <value = float[1,2] {5, 6}> () w = ScatterElements(v, p, u)",
        "p = Constant <value = int64[1,2] {1, 0}> () u = Constant <value = float[1] {5}> () w = ScatterND(v, p, u)",
        "p = Constant <value = int64[2,2] {1, -1, 0, 1}> () w = GatherElements(v, p)",
        "e = EyeLike(v) t = Trilu(v) w = Sub(e, t)",
        "i = Constant <value_int = 1> () s = CumSum(v, i) c = Cos(s) n = Sin(s) w = Mul(c, n)",  # a basis of sines
    ],
)
def test_weights_are_computed_whatever_made_them(made: str) -> None:
    text = f"g (float[N,2] x) => (float[N,2] y) <float[2,2] v = {{1, -2, 3, 4}}, float g = {{2}}> {{ {made} y = Gemm(x, w) }}"
    result = LiftConstants().run(parse(text))
    assert [n.op_type for n in result.model.graph.node] == ["Gemm"]
    compare_outputs(parse(text), result.model, 1e-6)


def test_what_no_weight_reads_is_computed_up_to_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "g (float[2] x) => (float[2] y) <float[2] v = {1, 2}> { a = Exp(v) b = Neg(v) c = Add(a, b) y = Mul(x, c) }"
    result = LiftConstants().run(parse(text))
    assert [n.op_type for n in result.model.graph.node] == ["Mul"]
    compare_outputs(parse(text), result.model, 1e-6)
    monkeypatch.setattr(lift_constants, "SOME_BYTES", 4)  # of one element, and `c` has two
    result = LiftConstants().run(parse(text))
    assert [n.op_type for n in result.model.graph.node] == ["Exp", "Add", "Mul"]


def test_parts_of_a_stored_bias_are_constants() -> None:
    """nn.MultiheadAttention of torch's dynamo exporter, whose queries and memory are projected by themselves."""
    check_pass(
        LiftConstants(),
        """g (float[N,2] x) => (float[N,1] y, float[N,2] z)
        <float[3] b = {1, 2, 3}, int64[2] sizes = {1, 2}, float[2,1] v = {1, 2}, float[2,2] w = {1, 2, 3, 4}> {
        q, kv = Split <axis = 0> (b, sizes) m = MatMul(x, v) y = Add(m, q) n = MatMul(x, w) z = Add(n, kv) }""",
        """g (float[N,2] x) => (float[N,1] y, float[N,2] z)
        <float[1] q = {1}, float[2] kv = {2, 3}, float[2,1] v = {1, 2}, float[2,2] w = {1, 2, 3, 4}> {
        m = MatMul(x, v) y = Add(m, q) n = MatMul(x, w) z = Add(n, kv) }""",
        inside_function="left",
    )


def test_learned_queries_behind_layers_that_read_nothing_else() -> None:
    text = """g (float[1,2] x) => (float[2,2] y) <float[1,2] q = {1, -2}, float[2,2] w = {1, 2, 3, 4}, float[2] g = {1, 2},
        float[2] o = {0, 1}, int64[2] times = {2, 1}, int64[2] i = {1, 0}, float[2,2] table = {5, 6, 7, 8}> {
        e = Tile(q, times) p = Gather(table, i) s = Add(e, p) n = LayerNormalization(s, g, o) a = MatMul(n, w)
        r = Relu(a) y = Mul(x, r) }"""
    header = '<ir_version: 9, opset_import: ["" : 17]> '
    result = LiftConstants().run(parse(header + text))
    assert [n.op_type for n in result.model.graph.node] == ["Mul"]
    assert {i.name for i in result.model.graph.initializer} == {"r"}
    compare_outputs(parse(header + text), result.model, 1e-5)


def test_constant_of_shape_feeds_a_weight() -> None:
    check_pass(
        LiftConstants(),
        """g (float[N,2] x) => (float[N,3] y) <int64[2] s = {2, 3}> {
        w = ConstantOfShape <value = float[1] {0.5}> (s) y = MatMul(x, w) }""",
        "g (float[N,2] x) => (float[N,3] y) <float[2,3] w = {0.5, 0.5, 0.5, 0.5, 0.5, 0.5}> { y = MatMul(x, w) }",
        inside_function="left",
    )


def test_what_another_node_reads_stays() -> None:
    before = """g (float[N,2] x) => (float[N,2] y) <float[2] a = {1, 2}> {
        b = Neg(a) c = Neg(b) t = Mul(x, c) y = Mul(t, b) }"""
    after = "g (float[N,2] x) => (float[N,2] y) <float[2] b = {-1, -2}, float[2] c = {1, 2}> { t = Mul(x, c) y = Mul(t, b) }"
    check_pass(LiftConstants(), before, after, inside_function="left")


def test_graph_outputs_stay() -> None:
    text = "g (float[2] x) => (float[2] y, float[2] w) { w = Constant <value = float[2] {1, 2}> () y = Mul(x, w) }"
    check_pass(LiftConstants(), text, None)


def test_nothing_is_folded_through_quantizers() -> None:
    text = """g (float[2] x) => (float[2] y) <float[2] w = {1, 2}, float s = {0.1}, int8 z = {0}> {
        q = QuantizeLinear(w, s, z) d = DequantizeLinear(q, s, z) y = Mul(x, d) }"""
    check_pass(LiftConstants(), text, None)


@pytest.mark.parametrize("op", ["Add", "MatMul"])
def test_bombs_are_not_computed(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lift_constants, "TOO_MANY_BYTES", 64)
    monkeypatch.setattr(lift_constants, "MANY_BYTES", 64)
    text = f"g (float[N,64] x) => (float[N,64] y) <int64[2] s = {{64, 64}}> {{ w = ConstantOfShape(s) y = {op}(x, w) }}"
    result = LiftConstants().run(parse(text.replace("[N,", "[64,")))
    assert not result.changed


RANKS = {"Unsqueeze": 3, "Expand": 3}


def test_values_of_each_folded_operator_match_the_runtime() -> None:
    array = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
    nodes = {
        "Unsqueeze": helper.make_node("Unsqueeze", ["a", "one"], ["w"]),
        "Slice": helper.make_node("Slice", ["a", "one", "two"], ["w"]),
        "Gather": helper.make_node("Gather", ["a", "one"], ["w"]),
        "Flatten": helper.make_node("Flatten", ["a"], ["w"], axis=0),
        "Expand": helper.make_node("Expand", ["a", "big"], ["w"]),
        "Div": helper.make_node("Div", ["a", "a"], ["w"]),
        "Concat": helper.make_node("Concat", ["a", "a"], ["w"], axis=-1),
        "Reciprocal": helper.make_node("Reciprocal", ["a"], ["w"]),
    }
    constants = {"a": array, "one": np.asarray([1]), "two": np.asarray([2]), "big": np.asarray([2, 3, 4])}
    for op, node in nodes.items():
        used = [numpy_helper.from_array(v, k) for k, v in constants.items() if k in node.input]
        graph = helper.make_graph(
            [node, helper.make_node("Add", ["x", "w"], ["y"])],
            op,
            [helper.make_tensor_value_info("x", 1, [1])],
            [helper.make_tensor_value_info("y", 1, [None] * RANKS.get(op, 2))],
            used,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        result = LiftConstants().run(model)
        assert [n.op_type for n in result.model.graph.node] == ["Add"], op
        feeds = {"x": np.zeros(1, np.float32)}
        np.testing.assert_array_equal(ort_run(model, feeds)["y"], ort_run(result.model, feeds)["y"], err_msg=op)


def test_the_callers_model_keeps_its_constants() -> None:
    model = io.load(parse("g (float[2] x) => (float[2] y) { w = Constant <value = float[2] {1, 2}> () y = Mul(x, w) }"))
    LiftConstants().run(model)
    assert [n.op_type for n in model.graph] == ["Constant", "Mul"]


def test_weights_of_real_models(shared) -> None:
    model = io.load(shared / "data" / "models" / "light_densenet121.onnx")
    closed = CloseInitializers().run(model)
    result = LiftConstants().run(closed.model)
    assert not any(n.op_type in ("ConstantOfShape", "Unsqueeze") for n in result.model.graph)
    compare_outputs(io.to_proto(closed.model), io.to_proto(result.model), 0, size=1)


def test_cast_in_front_of_a_conv_weight(shared) -> None:
    path = shared / "suites" / "cases" / "case_onnxruntime_13358.onnx"
    result = LiftConstants().run(path)
    convs = [n for n in result.model.graph if n.op_type == "Conv"]
    assert convs
    assert all(n.inputs[1].is_initializer() for n in convs)
    onnx.checker.check_model(io.to_proto(result.model))


def test_what_cannot_be_computed_stays() -> None:
    text = """g (float[N,2] x) => (float[N,2] y) <float[3] a = {1, 2, 3}, float[2] b = {1, 2}> {
        w = Add(a, b) y = Mul(x, w) }"""
    assert not LiftConstants().run(parse(text)).changed


def test_a_constant_that_is_large_beside_the_weights_is_not_computed() -> None:
    # Each of these has 64 MB, so that one alone would be computed, and the product of the two 256 MB.
    text = """g (float[1,8192] x) => (float[1,8192] y) <int64[2] tall = {8192, 2048}, int64[2] wide = {2048, 8192}> {
        a = ConstantOfShape(tall) b = ConstantOfShape(wide) w = MatMul(a, b) y = MatMul(x, w) }"""
    result = LiftConstants().run(parse(text))
    assert any("too large" in remark.message for remark in result.remarks)
    assert [n.op_type for n in result.model.graph.node][-2:] == ["MatMul", "MatMul"]
