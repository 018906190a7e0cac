"""Plans: which edge gets which treatment, and why the rest stays float."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxqat.types import Derived, Fixed, Float, QType, RedundantClip, Shared, TensorSpec
from tests.backends.planning import decision, edges, plan, proto, reasons, root, spec, table_file, weight
from tests.passes.checks import in_function

U8, I8 = QType("uint8", 0, 255), QType("int8", -128, 127)
W = f"float[2,2,1,1] w = {weight(2, 2, 1, 1)}, float[2] bias = {{0.1, -0.1}}"
CONV_RELU = f"g (float[1,2,4,4] x) => (float[1,2,4,4] out) <{W}> {{ t = Conv(x, w, bias) y = Relu(t) out = Neg(y) }}"


def consumers(text: str, backend: str, tensor: str) -> tuple[tuple[str, int], ...] | None:
    (edge,) = edges(plan(text, backend))[tensor]
    return edge.consumers


# ------------------------------------------------------------------ rows, placement, chains
def test_pairs_on_both_sides() -> None:
    found = plan(CONV_RELU)
    assert set(edges(found)) == {"x", "w", "bias", "y"}
    assert decision(found, "x") == TensorSpec(U8, symmetric=False, observer="auto")
    assert decision(found, "w") == TensorSpec(I8, granularity="channel", axis=0, role="weight", saturates=True)
    assert decision(found, "bias") == Derived("x", "w")
    assert decision(found, "y") == decision(found, "x")
    assert edges(found)["y"][0].consumers is None
    assert edges(found)["x"][0].consumers == (("t_Conv", 0),)
    assert found.redundant_clips == (RedundantClip("t", "y", 0.0, float("inf")),)
    assert reasons(found) == {"out_Neg": "onnxruntime-cpu has no row for Neg"}


def test_an_output_that_is_left_out_carries_no_pair() -> None:
    text = f"g (float[1,2,4,4] x) => (float[1,2,4,4] out) <{W}> {{ y = Conv(x, w, bias) out, _m = Dropout(y) }}"
    model = proto(text)
    model.graph.node[1].output[1] = ""
    assert "" not in edges(plan(model))


def test_pairs_on_inputs_only() -> None:
    found = plan(CONV_RELU, "tensorrt")
    assert set(edges(found)) == {"x", "w", "bias"}
    assert decision(found, "x") == TensorSpec(I8, observer="auto")
    assert decision(found, "bias") == Derived("x", "w", "float")
    assert found.redundant_clips == ()


def test_a_chain_that_the_user_cut_is_not_fused() -> None:
    found = plan(CONV_RELU, exclude_ops=("Relu",))
    assert "t" in edges(found)
    assert "y" not in edges(found)
    assert found.redundant_clips == ()
    assert reasons(found)["y_Relu"] == "operator type Relu is excluded"


def test_what_reads_an_excluded_layer() -> None:
    text = f"""g (float[1,2,4,4] x) => (float[1,2,4,4] y) <{W}> {{
        s = Conv(x, w) t = Conv(s, w) y = Conv(t, w) }}"""
    found = plan(text, "litert-int8", exclude=("t",))
    assert reasons(found) == {"t_Conv": "excluded by 't'"}
    assert edges(found)["t"][0].consumers == (("y_Conv", 0),)
    assert edges(found)["s"][0].consumers is None
    assert edges(found)["w"][0].consumers == (("s_Conv", 1), ("y_Conv", 1))


def test_included_only() -> None:
    text = f"g (float[1,2,4,4] x) => (float[1,2,4,4] y) <{W}> {{ t = Conv(x, w) y = Conv(t, w) }}"
    assert reasons(plan(text, include=("y",))) == {"t_Conv": "not included"}


@pytest.mark.parametrize(("outputs", "pair"), [("quantize", True), ("float", False)])
def test_graph_outputs(outputs: str, pair: bool, tmp_path: Path) -> None:
    table = table_file(tmp_path, f"backend: t\nextends: onnxruntime-cpu\nio: {{outputs: {outputs}}}\n")
    text = f"g (float[1,2,4,4] x) => (float[1,2,4,4] y) <{W}> {{ y = Conv(x, w) }}"
    assert ("y" in edges(plan(text, table))) is pair


def test_float_graph_inputs(tmp_path: Path) -> None:
    table = table_file(tmp_path, "backend: t\nextends: onnxruntime-cpu\nio: {inputs: float}\n")
    text = f"g (float[1,2,4,4] x) => (float[1,2,4,4] y) <{W}> {{ r = Transpose(x) t = Transpose(r) u = Conv(t, w) y = Conv(u, w) }}"
    assert set(edges(plan(text, table))) == {"r", "t", "w", "u", "y"}


def test_a_result_that_the_kernel_gives_in_float() -> None:
    text = f"g (float[1,2] x) => (float[1,2] y) <float[2,2] v = {weight(2, 2)}> {{ t = MatMul(x, v) y = MatMul(t, v) }}"
    assert set(edges(plan(text))) == {"x", "v", "t"}


# ------------------------------------------------------------------ ties, pass-through, fixed
def test_pass_through_spreads_both_ways() -> None:
    text = f"""g (float[1,2,4,4] x) => (float[1,2,2,2] out) <{W}> {{
        r = Abs(x) p = Transpose(r) q = Transpose(p) t = Conv(q, w) m = MaxPool<kernel_shape = [2,2], strides = [2,2]>(t)
        n = Transpose(m) o = Transpose(n) out = Neg(o) }}"""
    found = plan(text)
    assert len({root(found, t) for t in ("r", "p", "q")}) == 1
    assert {root(found, t) for t in ("t", "m", "n", "o")} == {"t"}
    assert spec(found, "r") == spec(found, "o") == TensorSpec(U8, symmetric=False, observer="auto")
    assert edges(found)["r"][0].consumers == (("p_Transpose", 0),)
    assert set(reasons(found)) == {"r_Abs", "out_Neg"}


def test_pass_through_between_float_stays_float() -> None:
    found = plan("g (float[2,2] x) => (float[2,2] y) { t = Neg(x) u = Transpose(t) y = Abs(u) }")
    assert found.edges == ()


def test_every_part_of_a_split_shares_its_input() -> None:
    text = f"""g (float[1,4,4,4] x) => (float[1,2,4,4] y) <{W}> {{
        p, q = Split<axis = 1, num_outputs = 2>(x) t = Conv(p, w) u = Conv(q, w) y = Add(t, u) }}"""
    found = plan(text)
    assert root(found, "x") == root(found, "p") == root(found, "q")


def test_excluded_pass_through_spreads_nothing() -> None:
    text = f"g (float[1,2,4,4] x) => (float[1,2,4,4] y) <{W}> {{ r = Abs(x) p = Transpose(r) y = Conv(p, w) }}"
    assert "r" not in edges(plan(text, exclude=("p",)))


CONCAT = f"""g (float[1,2,4,4] x, float[1,2,4,4] z) => (float[1,4,4,4] out) <{W}> {{
    a = Conv(x, w) b = Conv(z, w) c = Concat<axis = 1>(a, b) out = Neg(c) }}"""


def test_concat_tied_with_its_output() -> None:
    found = plan(CONCAT, "onnxruntime-cpu")
    assert len({root(found, t) for t in "abc"}) == 1
    assert sum(isinstance(e.decision, TensorSpec) for t in "abc" for e in edges(found)[t]) == 1


def test_concat_with_tied_inputs() -> None:
    found = plan(CONCAT, "tensorrt")
    assert root(found, "b") == "a"
    assert "c" not in edges(found)


def test_concat_without_tie(tmp_path: Path) -> None:
    assert len({root(plan(CONCAT), t) for t in "abc"}) == 1
    table = table_file(tmp_path, "backend: mine\nextends: onnxruntime-cpu\nops: {Concat: {share: null}}\n")
    assert not any(isinstance(e.decision, Shared) for e in plan(CONCAT, table).edges)


@pytest.mark.parametrize("backend", ["tensorrt", "qnn-htp"])
@pytest.mark.parametrize("order", ["k, x", "x, k"])
def test_a_tied_constant_shares_the_observed_range(backend: str, order: str) -> None:
    text = (
        f"g (float[1,2] x) => (float[1,4] y) <float[1,2] k = {{1, 2}}> {{ c = Concat<axis = 1>({order}) y = Neg(c) }}"
    )
    found = plan(text, backend)
    assert root(found, "k") == root(found, "x")
    assert spec(found, "k").role == "activation"


def test_mixed_range_concat_stays_float() -> None:
    found = plan(CONCAT, "openvino-cpu", mixed_range={"c_Concat": "b"})
    assert reasons(found)["c_Concat"] == "its inputs have ranges too different for one scale"
    assert root(found, "a") == "a"
    assert root(found, "b") == "b"


@pytest.mark.parametrize(("reader", "expected"), [("Relu", "a"), ("Erf", None)])
def test_a_mixed_concat_returns_the_grid_of_its_widest_input(reader: str, expected: str | None) -> None:
    text = f"""g (float[1,2] x, float[1,2] z) => (float[1,4] y) {{
        a = Abs(x) b = Sigmoid(z) c = Concat<axis = 1>(a, b) y = {reader}(c) }}"""
    found = plan(text, "qnn-htp", mixed_range={"c_Concat": "a"})
    assert (root(found, "c") if "c" in edges(found) else None) == expected
    assert root(found, "b") == "b"


def test_fixed_output() -> None:
    found = plan("g (float[1,4] x) => (float[1,4] y) { s = Softmax(x) y = Neg(s) }")
    fixed = decision(found, "s")
    assert isinstance(fixed, Fixed)
    assert float(fixed.qparams.scale) == pytest.approx(1 / 255)
    assert int(fixed.qparams.zero_point) == 0


def test_fixed_parameters_pass_through_a_reshape() -> None:
    found = plan("g (float[2,2] x) => (float[2,2] y) { s = Sigmoid(x) t = Transpose(s) y = Neg(t) }")
    assert isinstance(decision(found, "t"), Fixed)
    assert decision(found, "t") == decision(found, "s")


@pytest.mark.parametrize(
    "tail", ["y = Softmax(x)", "s = Softmax(x) y = Identity(s)", "s = Softmax(x) y = Transpose(s)"]
)
def test_a_probability_that_leaves_the_graph(tail: str) -> None:
    found = plan(f"g (float[2,2] x) => (float[2,2] y) {{ {tail} }}")
    assert found.edges == ()
    assert set(reasons(found).values()) >= {"a probability that leaves the graph needs finer steps"}


# ------------------------------------------------------------------ what stays float
@pytest.mark.parametrize("mask", ["-inf", "-3.4e38", "1e9", "nan"])
def test_masks_stay_float(mask: str) -> None:
    model = proto("g (float[2] x) => (float[2] y) <float[2] m = {0, 1}> { t = Add(x, m) y = Neg(t) }")
    model.graph.initializer[0].CopyFrom(onnx.helper.make_tensor("m", onnx.TensorProto.FLOAT, [2], [0, float(mask)]))
    found = plan(model)
    assert found.edges == ()
    assert reasons(found)["t_Add"] == "constant 'm' is a mask or not finite"


def test_integer_paths_are_untouched() -> None:
    text = """g (int64[2] i, float[4,2] x) => (float[2,2] y, int64[2] j) <int64 one = {1}> {
        j = Add(i, one) t = Gather(x, j) y = Neg(t) }"""
    found = plan(text)
    assert found.edges == ()
    assert "t_Gather" not in reasons(found)


def test_shape_arithmetic_is_untouched_and_unmentioned() -> None:
    text = """g (float[N,4] x) => (float[M,2] out) <float two = {2}> { s = Shape(x) f = Cast<to = 1>(s) h = Mul(f, two)
        i = Cast<to = 7>(h) r = Reshape(x, i) out = Neg(r) }"""
    found = plan(text)
    assert found.edges == ()
    assert set(reasons(found)) == {"out_Neg"}


def test_integers_are_left_with_a_reason_and_float16_is_planned_in_float32() -> None:
    text = "g (TYPE[1,2] x, TYPE[1,2] z) => (TYPE[1,2] y) { y = Add(x, z) }"
    integers, half = (plan(text.replace("TYPE", kind)) for kind in ("int32", "float16"))
    assert reasons(integers) == {"y_Add": "input 0 has type int32; only float32 is quantized"}
    assert set(edges(half)) == {"x", "z", "y"}


def test_a_computed_convolution_weight() -> None:
    text = "g (float[1,2,4,4] x, float[2,2,1,1] v) => (float[1,2,4,4] y) { y = Conv(x, v) }"
    found = plan(text)
    assert found.edges == ()
    assert reasons(found) == {"y_Conv": "its weight 'v' is an input, not constant"}
    text = "g (float[1,2,4,4] x, float[2,2,1,1] u) => (float[1,2,4,4] y) { v = Sin(u) y = Conv(x, v) }"
    assert reasons(plan(text))["y_Conv"] == "its weight 'v' is computed by v_Sin (Sin), not constant"


def test_a_product_whose_weight_is_computed_without_data_is_told() -> None:
    body = "n = RandomNormal<shape = [4,4]>() v = Mul(n, x) y = MatMul(x, %s)"
    text = "g (float[4,4] x) => (float[4,4] y) { " + body + " }"
    assert plan(text % "v").remarks == ()
    (remark,) = plan(text % "n").remarks
    assert remark.nodes == ("y_MatMul",)
    assert "'n' is computed by n_RandomNormal (RandomNormal)" in remark.message


def test_product_of_two_activations() -> None:
    found = plan("g (float[2,2] x, float[2,2] z) => (float[2,2] y) { t = MatMul(x, z) y = Neg(t) }")
    assert {t: spec(found, t) for t in "xzt"} == dict.fromkeys("xzt", TensorSpec(U8, symmetric=False, observer="auto"))


def test_a_row_for_some_attribute_values() -> None:
    text = """g (float[1,1,H,W] x) => (float[1,1,A,B] y) {
        t = AveragePool<kernel_shape = [3,3], strides = [2,2], auto_pad = "SAME_UPPER", count_include_pad = %d>(x)
        y = Neg(t) }"""
    assert set(edges(plan(text % 0, "openvino-cpu"))) == {"x", "t"}
    found = plan(text % 1, "openvino-cpu")
    assert found.edges == ()
    assert reasons(found)["t_AveragePool"] == "the backend takes AveragePool only with count_include_pad=0"
    unpadded = text % 1
    assert set(edges(plan(unpadded.replace('auto_pad = "SAME_UPPER", ', ""), "openvino-cpu"))) == {"x", "t"}


def test_resize_passes_through_in_nearest_mode_only() -> None:
    text = f"""g (float[1,2,2,2] x) => (float[1,2,4,4] y) <{W}, float[4] s = {{1, 1, 2, 2}}> {{
        t = Conv(x, w) u = Resize<mode = "%s">(t, , s) y = Neg(u) }}"""
    assert root(plan(text % "nearest"), "u") == "t"
    found = plan(text % "linear")
    assert "u" not in edges(found)
    assert reasons(found)["u_Resize"] == "onnxruntime-cpu has no row for Resize of mode linear"


IF = f"""g (float[1,2,4,4] x, bool c) => (float[1,2,4,4] y) <{W}> {{
    t = Conv(x, w)
    y = If(c) <then_branch = yes () => (float[1,2,4,4] r) {{ r = Conv(t, w) }},
               else_branch = no () => (float[1,2,4,4] s) {{ s = Relu(t) }}> }}"""


def test_branches_of_if_are_placed_in() -> None:
    found = edges(plan(IF))
    assert set(found) == {"x", "w", "t", "r"}
    assert found["w"][0].consumers == (("t_Conv", 1), ("r_Conv", 1))
    assert [(e.decision, e.consumers) for e in found["t"][1:]] == [(Shared("t"), (("r_Conv", 0),))]
    assert found["r"][0].consumers is None


def test_what_an_if_returns_shares_the_grid_of_its_branches() -> None:
    text = f"""g (float[1,2,4,4] x, bool c) => (float[1,2,4,4] z) <{W}> {{
        y = If(c) <then_branch = yes () => (float[1,2,4,4] r) {{ r = Conv(x, w) }},
                   else_branch = no () => (float[1,2,4,4] s) {{ s = Sigmoid(x) }}>
        z = Conv(y, w) }}"""
    found = plan(text)
    assert root(found, "r") == "y"
    assert isinstance(decision(found, "s"), Fixed)
    assert set(edges(plan(text, "tensorrt"))) == {"x", "w", "y"}


def test_a_result_that_leaves_through_an_if() -> None:
    text = """g (float[2,2] x, bool c) => (float[2,2] y) <float[2,2] w = {1, 2, 3, 4}> {
        y = If(c) <then_branch = yes () => (float[2,2] r) { r = MatMul(x, w) },
                   else_branch = no () => (float[2,2] s) { t = Add(x, x) s = Softmax(t) }> }"""
    found = plan(text)
    assert "r" not in edges(found)
    assert reasons(found)["s_Softmax"] == "a probability that leaves the graph needs finer steps"


def test_bodies_of_loops_are_left_with_a_reason() -> None:
    text = """g (float[2,2] x) => (float[2,2] y) <int64 trip = {2}, bool go = {1}, float[2,2] w = {1, 2, 3, 4}> {
        y = Loop(trip, go, x) <body = b (int64 i, bool g, float[2,2] a) => (bool h, float[2,2] z) {
            h = Identity(g) z = MatMul(a, w) }> }"""
    found = plan(text)
    assert reasons(found)["z_MatMul"] == "placement does not reach into the body of y_Loop (b)"
    assert reasons(plan(text, exclude=("z_MatMul",)))["z_MatMul"] == "excluded by 'z_MatMul'"
    assert found.edges == ()


def test_functions_are_placed_in() -> None:
    inlined, flat = plan(in_function(proto(CONV_RELU))), plan(CONV_RELU)
    assert edges(inlined) == edges(flat)


def test_functions_that_cannot_be_inlined_are_left_with_a_reason(tmp_path: Path) -> None:
    model = in_function(proto(CONV_RELU))
    model.functions[0].opset_import[0].version = 22
    path = table_file(tmp_path, "backend: old\nextends: onnxruntime-cpu\nopset: [13, 21]\n")
    found = plan(model, path)
    assert found.edges == ()
    assert "placement does not reach into a model-local function (body)" in reasons(found).values()
    assert edges(plan(model))["y"]  # a backend that reads opset 22 has no such trouble


def test_operators_of_other_domains() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
        g (float[2] x, float[2] z) => (float[2] y) { y = com.microsoft.Add(x, z) }"""
    model = onnx.parser.parse_model(text)
    found = plan(model)
    assert found.edges == ()
    assert reasons(found) == {"y_Add": "onnxruntime-cpu has no row for Add"}


# ------------------------------------------------------------------ axes
@pytest.mark.parametrize(
    ("node", "shape", "axis"),
    [
        ("Conv(x, w)", (4, 2, 1, 1), 0),
        ("Conv<group = 2>(x, w)", (4, 1, 1, 1), 0),
        ("ConvTranspose(x, w)", (2, 4, 1, 1), 1),
        ("ConvTranspose<group = 2>(x, w)", (2, 2, 1, 1), None),
    ],
)
def test_channel_axis_of_convolutions(node: str, shape: tuple[int, ...], axis: int | None) -> None:
    size = ",".join(map(str, shape))
    text = f"g (float[1,2,4,4] x) => (float[1,4,4,4] y) <float[{size}] w = {weight(*shape)}> {{ y = {node} }}"
    assert spec(plan(text, "tensorrt"), "w").axis == axis


@pytest.mark.parametrize(
    ("node", "x", "shape", "axis"),
    [
        ("Gemm(x, w)", "1,2", (2, 3), 1),
        ("Gemm<transB = 1>(x, w)", "1,2", (3, 2), 0),
        ("MatMul(x, w)", "1,2", (2, 3), 1),
        ("MatMul(x, w)", "4,1,2", (4, 2, 3), None),
        ("MatMul(x, w)", "3,2", (2,), None),
        ("MatMul(w, x)", "2,3", (3, 2), None),
    ],
)
def test_channel_axis_of_products(node: str, x: str, shape: tuple[int, ...], axis: int | None) -> None:
    size = ",".join(map(str, shape))
    text = f"g (float[{x}] x) => (float y) <float[{size}] w = {weight(*shape)}> {{ t = {node} y = ReduceSum<keepdims=0>(t) }}"
    found = spec(plan(text, "tensorrt"), "w")
    assert found.axis == axis
    assert found.role == "weight"


def test_per_tensor_weights() -> None:
    assert spec(plan(CONV_RELU, per_channel=False), "w").axis is None


def test_all_that_move_a_tensor_read_one_pair() -> None:
    """The first layer of YOLOv5: a picture in four slices."""
    found = plan("""g (float[2,4] x) => (float[2,4] y) <int64[1] z = {0}, int64[1] o = {1}, int64[1] e = {2}> {
        a = Slice(x, z, o, o) b = Slice(x, o, e, o) c = Concat<axis = 1>(a, b, x) d = Concat<axis = 1>(a, b) y = Neg(d) }""")
    readers = {consumer for edge in edges(found)["x"] for consumer in edge.consumers or ()}
    assert {name for name, _ in readers} >= {"a_Slice", "b_Slice"}


# ------------------------------------------------------------------ widths
THREE = f"g (float[1,2,4,4] x) => (float[1,2,4,4] y) <{W}, {W.replace(' w ', ' v ').split(', float[2] bias')[0]}, {W.replace(' w ', ' u ').split(', float[2] bias')[0]}> {{ s = Conv(x, w) t = Conv(s, v) y = Conv(t, u) }}"


def test_first_and_last_layer_keep_more_bits() -> None:
    found = plan(THREE, "academic")
    assert [spec(found, t).qtype.bits for t in "xwsvtu"] == [8, 8, 4, 4, 8, 8]
    assert [spec(found, t).observer for t in "xwsv"] == ["auto", "minmax", "mse", "mse"]
    found = plan(THREE, "academic", observer="percentile")
    assert {spec(found, t).observer for t in "xwsv"} == {"percentile"}


def test_first_and_last_layer_of_an_8_bit_table() -> None:
    found = plan(THREE, "tensorrt", first_last_bits=4)
    assert [spec(found, t).qtype.bits for t in "xwsvtu"] == [4, 4, 8, 8, 4, 4]


def test_first_and_last_layer_left_in_float() -> None:
    found = plan(THREE, "academic", first_last_bits=0)
    assert set(edges(found)) == {"s", "v"}
    assert reasons(found) == dict.fromkeys(("s_Conv", "y_Conv"), "first or last layer")


def test_a_slot_with_a_type_of_its_own_takes_the_width() -> None:
    text = f"g (float[1,2,4,4] x) => (float[1,2,4,4] y) <{W}> {{ y = ConvTranspose(x, w) }}"
    assert spec(plan(text, "openvino-cpu"), "x") == TensorSpec(I8, observer="auto")
    assert spec(plan(text, "openvino-cpu", activation_bits=4), "x").qtype == QType("int8", -8, 7)
    for wide in ({"activation_bits": 16}, {"activation_type": "int16"}, {"activation_type": "uint16"}):
        assert spec(plan(text, "openvino-cpu", **wide), "x").qtype == QType("int16", -32768, 32767)


def test_two_consumers_with_two_widths() -> None:
    text = f"""g (float[1,2,4,4] x) => (float[1,2,4,4] y) <{W}, {W.replace(" w ", " v ").split(", float[2] bias")[0]}> {{
        s = Conv(x, w) t = Conv(x, v) u = Conv(t, v) y = Add(s, u) }}"""
    found = plan(text, "academic", first_last_bits=8)
    assert [spec(found, t).qtype.bits for t in "x"] == [8]
    text = f"""g (float[1,2,4,4] x) => (float[1,2,4,4] y, float[1,2,4,4] z) <{W}> {{
        s = Conv(x, w) t = Conv(s, w) y = Conv(t, w) z = Conv(s, w) }}"""
    both = edges(plan(text, "academic"))["s"]
    assert [(e.decision.qtype.bits, e.consumers) for e in both if isinstance(e.decision, TensorSpec)] == [
        (4, (("t_Conv", 0),)),
        (8, (("z_Conv", 0),)),
    ]


WIDTHS = {"activation_bits": 4, "weight_bits": 4, "first_last_bits": 8}


def bits_of(text: str, tensor: str, backend: str = "onnxruntime-cpu") -> list[tuple[int, object]]:
    """Width and consumers of each pair on `tensor`."""
    found = plan(text, backend, **WIDTHS)
    pairs = [(e.decision.qparams if isinstance(e.decision, Fixed) else e.decision, e) for e in edges(found)[tensor]]
    return [(spec(found, tensor).qtype.bits if isinstance(d, Shared) else d.qtype.bits, e.consumers) for d, e in pairs]


def test_a_tensor_that_is_only_read_on_another_grid_has_one_pair() -> None:
    assert bits_of(THREE, "s") == [(4, None)]  # the first layer makes 8 bits, the second reads 4
    assert bits_of(THREE, "t") == [(8, None)]  # and the last reads 8


def test_behind_data_movement_too() -> None:
    text = THREE.replace("t = Conv(s, v)", "m = MaxPool<kernel_shape = [1,1]>(s) t = Conv(m, v)")
    assert bits_of(text, "s") == bits_of(text, "m") == [(4, None)]
    assert root(plan(text, **WIDTHS), "m") == "s"


def test_fixed_parameters_take_the_width_of_the_reader() -> None:
    text = THREE.replace("t = Conv(s, v)", "m = Sigmoid(s) t = Conv(m, v) ").replace(" y = Conv(t", " y = Conv(m")
    assert bits_of(text.replace("t = Conv(m, v)", "", 1), "m") == [(8, None)]
    ends = plan(text.replace("t = Conv(m, v)", "", 1), activation_bits=4, first_last_bits=8)
    assert decision(ends, "m").qparams.scale == np.float32(1 / 255)


def test_a_tensor_that_is_made_and_read_on_two_grids() -> None:
    text = THREE.replace("float[1,2,4,4] y)", "float[1,2,4,4] y, float[1,2,4,4] z)").replace(
        "y = Conv(t, u)", "y = Conv(t, u) z = Conv(s, u)"
    )
    assert bits_of(text, "s") == [(8, None), (4, (("t_Conv", 0),))]
    left = THREE.replace("float[1,2,4,4] y)", "float[1,2,4,4] y, float[1,2,4,4] s)")
    assert bits_of(left, "s") == [(8, None), (4, (("t_Conv", 0),))]


def test_tensors_on_two_grids_are_not_tied() -> None:
    text = f"""g (float[1,2,4,4] x, float[1,2,4,4] z) => (float[1,4,4,4] out, float[1,2,4,4] a) <{W}> {{
        a = Conv(x, w) b = Abs(z) c = Concat<axis = 1>(a, b) out = Neg(c) }}"""
    found = plan(text, "onnxruntime-cpu", activation_bits=4, first_last_bits=8)
    assert root(found, "b") == "c"
    assert "'c' and 'a' differ in type and so cannot share a scale" in [r.message for r in found.remarks]


def test_nothing_is_decided_twice() -> None:
    for backend in ("onnxruntime-cpu", "openvino-cpu", "tensorrt", "academic"):
        for text in (CONV_RELU, CONCAT, IF, THREE):
            seen = [(e.tensor, c) for e in plan(text, backend).edges for c in e.consumers or (None,)]
            assert len(seen) == len(set(seen))
            assert not any(isinstance(e.decision, Float) for e in plan(text, backend).edges)


def test_a_concat_that_reads_a_quantizer_of_the_file() -> None:
    text = """g (float[1,2,4,4] x, float[1,2,4,4] z) => (float[1,4,4,4] out) <float s = {0.5}, uint8 o = {7}> {
        q = QuantizeLinear(x, s, o) d = DequantizeLinear(q, s, o) c = Concat<axis = 1>(d, z) out = Neg(c) }"""
    assert {e.tensor for e in plan(text, "qnn-htp").edges} >= {"z", "c"}


def test_a_weight_of_too_low_a_rank_is_no_reason_to_stop() -> None:
    text = """g (float[1,2,4,4] x) => (float[1,2,4,4] y) <float w = {0.5}, float[2] b = {1, 2}> { y = ConvTranspose(x, w, b) }"""
    assert "the weight's shape does not fit the node" in plan(text, "openvino-cpu").remarks[0].message


def test_a_fused_probability_that_leaves_the_graph_stays_float() -> None:
    text = f"g (float[1,2,4,4] x) => (float[1,2,4,4] y) <{W}> {{ t = Conv(x, w) y = Sigmoid(t) }}"
    assert {e.tensor for e in plan(text, "openvino-cpu").edges} == {"x", "w"}
    inside = text.replace("y = Sigmoid(t)", "s = Sigmoid(t) y = Conv(s, w)")
    assert "s" in {e.tensor for e in plan(inside, "openvino-cpu").edges}
