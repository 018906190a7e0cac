"""place-qdq: the quantizers of a plan stand where the plan says."""

import numpy as np
import onnx
import pytest

from onnxqat import numerics
from onnxqat.errors import ModelError
from onnxqat.passes.place_qdq import PlaceQdq
from onnxqat.passes.strip_qdq import StripQdq
from onnxqat.types import Placement, QParams, QType
from tests.passes.checks import compare_graphs, in_function, in_if, operators, ort_run, parse, random_feeds

I8, U4 = QType("int8", -128, 127), QType("uint8", 0, 15)
COARSE = QParams(np.float32(0.5), np.int64(3), I8)
FINE = QParams(np.float32(0.25), np.int64(8), U4)
S, Z = "float x_scale = {0.5}", "int8 x_zero_point = {3}"
CHAIN = "g (float[N] x) => (float[N] y) { a = Neg(x) b = Abs(a) c = Exp(a) y = Add(b, c) }"


def place(before: str | onnx.ModelProto, *placements: Placement) -> onnx.ModelProto:
    """Placed; the caller's model is untouched, a second run changes nothing, stripping gives the model back."""
    model = parse(before)
    kept = model.SerializeToString(deterministic=True)
    result = PlaceQdq(placements).run(model)
    assert model.SerializeToString(deterministic=True) == kept
    onnx.checker.check_model(result.model, full_check=True)
    again = PlaceQdq(placements).run(result.model)
    assert not again.changed
    assert again.model.SerializeToString(deterministic=True) == result.model.SerializeToString(deterministic=True)
    assert [v.name for v in result.model.graph.output] == [v.name for v in model.graph.output]
    if result.changed:
        compare_graphs(StripQdq().run(result.model).model.graph, model.graph)
    return result.model


def expect(model: onnx.ModelProto, after: str) -> None:
    compare_graphs(model.graph, parse(after).graph)


def test_every_reader() -> None:
    expect(
        place("g (float[N] x) => (float[N] y) { a = Neg(x) b = Abs(x) y = Add(a, b) }", Placement("x", COARSE, "r")),
        f"""g (float[N] x) => (float[N] y) <{S}, {Z}> {{
        x_QuantizeLinear_Output = QuantizeLinear(x, x_scale, x_zero_point)
        x_DequantizeLinear_Output = DequantizeLinear(x_QuantizeLinear_Output, x_scale, x_zero_point)
        a = Neg(x_DequantizeLinear_Output) b = Abs(x_DequantizeLinear_Output) y = Add(a, b) }}""",
    )


def test_some_readers() -> None:
    model = place('g (float[N] x) => (float[N] y) { ["n"] a = Neg(x) b = Abs(x) y = Add(a, b) }',
        Placement("x", COARSE, "r", (("n", 0),)))  # fmt: skip
    expect(
        model,
        f"""g (float[N] x) => (float[N] y) <{S}, {Z}> {{
        x_QuantizeLinear_Output = QuantizeLinear(x, x_scale, x_zero_point)
        x_DequantizeLinear_Output = DequantizeLinear(x_QuantizeLinear_Output, x_scale, x_zero_point)
        a = Neg(x_DequantizeLinear_Output) b = Abs(x) y = Add(a, b) }}""",
    )


def test_one_of_two_inputs_of_a_node() -> None:
    model = place('g (float[N] x) => (float[N] y) { ["n"] y = Add(x, x) }', Placement("x", COARSE, "r", (("n", 1),)))
    assert list(model.graph.node[-1].input) == ["x", "x_DequantizeLinear_Output"]


def test_graph_output_keeps_its_name() -> None:
    expect(
        place("g (float[N] x) => (float[N] y) { y = Neg(x) }", Placement("y", COARSE, "r")),
        """g (float[N] x) => (float[N] y) <float y_scale = {0.5}, int8 y_zero_point = {3}> {
        y_QuantizeLinear_Input = Neg(x)
        y_QuantizeLinear_Output = QuantizeLinear(y_QuantizeLinear_Input, y_scale, y_zero_point)
        y = DequantizeLinear(y_QuantizeLinear_Output, y_scale, y_zero_point) }""",
    )


def test_a_declared_shape_that_nothing_proves_stays_with_the_output() -> None:
    """onnxruntime does not go by the declared shape of an output; for other tensors it allocates what they state."""
    weight = ", ".join(["0.5"] * 16)
    model = parse(f"""g (float[N,4] x, int64[K] to) => (float[1,4] y) <float[4,4] w = {{{weight}}}> {{
        s = Reshape(x, to) y = Add(s, w) }}""")
    placed = PlaceQdq([Placement("y", COARSE, "r")]).run(model).model
    assert [d.dim_value for d in placed.graph.output[0].type.tensor_type.shape.dim] == [1, 4]
    assert not any(v.type.tensor_type.HasField("shape") for v in placed.graph.value_info if v.name.startswith("y_Q"))
    assert ort_run(placed, {"x": np.ones((4, 4), np.float32), "to": np.array([4, 4])})["y"].shape == (4, 4)


def test_graph_output_that_others_read() -> None:
    model = place("g (float[N] x) => (float[N] y, float[N] z) { y = Neg(x) z = Abs(y) }", Placement("y", COARSE, "r"))
    assert operators(list(model.graph.node)) == ["Neg", "QuantizeLinear", "DequantizeLinear", "Abs"]
    assert list(model.graph.node[-1].input) == ["y"]


def test_narrow_grid_has_a_clip() -> None:
    model = place("g (float[N] x) => (float[N] y) { y = Neg(x) }", Placement("x", FINE, "r"))
    expect(
        model,
        """g (float[N] x) => (float[N] y) <float x_scale = {0.25}, uint8 x_zero_point = {8}, uint8 x_quant_min = {0},
        uint8 x_quant_max = {15}> {
        x_QuantizeLinear_Output = QuantizeLinear(x, x_scale, x_zero_point)
        x_clipped = Clip(x_QuantizeLinear_Output, x_quant_min, x_quant_max)
        x_DequantizeLinear_Output = DequantizeLinear(x_clipped, x_scale, x_zero_point)
        y = Neg(x_DequantizeLinear_Output) }""",
    )
    feeds = random_feeds(model, 0, size=50)
    np.testing.assert_array_equal(ort_run(model, feeds)["y"], -numerics.fake_quantize(feeds["x"], FINE))


def test_constant_per_channel() -> None:
    text = "g (float[N,2] x) => (float[N,2] y) <float[2,2] w = {1, 2, 3, 4}> { y = MatMul(x, w) }"
    qparams = QParams(np.float32([0.5, 0.25]), np.int64([0, 0]), I8, axis=1)
    model = place(text, Placement("w", qparams, "r"))
    quantize = next(n for n in model.graph.node if n.op_type == "QuantizeLinear")
    assert [a.i for a in quantize.attribute if a.name == "axis"] == [1]


def test_two_grids_for_two_readers() -> None:
    model = place(
        CHAIN.replace("b = Abs", '["n"] b = Abs').replace("c = Exp", '["m"] c = Exp'),
        Placement("a", COARSE, "r", (("n", 0),)),
        Placement("a", FINE, "r", (("m", 0),)),
    )
    assert operators(list(model.graph.node)).count("QuantizeLinear") == 2
    quantizes = [n for n in model.graph.node if n.op_type == "QuantizeLinear"]
    assert [n.input[0] for n in quantizes] == ["a", "a"]
    assert quantizes[0].input[1] != quantizes[1].input[1]


def test_a_second_grid_behind_the_first() -> None:
    model = place(
        CHAIN.replace("b = Abs", '["n"] b = Abs'),
        Placement("a", COARSE, "r"),
        Placement("a", FINE, "r", (("n", 0),)),
    )
    feeds = random_feeds(model, 1, size=20)
    once = numerics.fake_quantize(-feeds["x"], COARSE)
    expected = np.abs(numerics.fake_quantize(once, FINE)) + np.exp(once)
    np.testing.assert_allclose(ort_run(model, feeds)["y"], expected, rtol=1e-6)


def test_a_group_shares_its_constants() -> None:
    model = place(CHAIN, Placement("b", COARSE, "r", None, "c"), Placement("c", COARSE, "r", None, "c"))
    assert {i.name for i in model.graph.initializer} == {"c_scale", "c_zero_point"}


def test_equal_parameters_without_a_group_are_two() -> None:
    model = place(CHAIN, Placement("b", COARSE, "r"), Placement("c", COARSE, "r"))
    assert {i.name for i in model.graph.initializer} == {"b_scale", "b_zero_point", "c_scale", "c_zero_point"}


def test_who_made_it_and_why() -> None:
    model = place("g (float[N] x) => (float[N] y) { y = Neg(x) }", Placement("x", COARSE, "Neg input 0"))
    for node in model.graph.node[:2]:
        assert {p.value for p in node.metadata_props} == {"place-qdq", "Neg input 0"}
    assert not model.graph.node[2].metadata_props


def test_names_that_are_taken() -> None:
    text = "g (float[N] x) => (float[N] y, float[N] x_QuantizeLinear_Output) <float x_scale = {9}> { y = Mul(x, x_scale) x_QuantizeLinear_Output = Neg(x) }"
    model = place(text, Placement("x", COARSE, "r"))
    assert {i.name for i in model.graph.initializer} > {"x_scale"}
    assert [v.name for v in model.graph.output] == ["y", "x_QuantizeLinear_Output"]


@pytest.mark.parametrize("wrap", [in_if, in_function])
def test_inner_scopes(wrap: object) -> None:
    model = wrap(parse(CHAIN))  # type: ignore[operator]
    scope = (
        model.functions[0]
        if model.functions
        else next(a.g for a in model.graph.node[-1].attribute if a.name == "then_branch")
    )
    inner = next(n.output[0] for n in scope.node if n.op_type == "Neg")
    result = PlaceQdq([Placement(inner, COARSE, "r")]).run(model)
    onnx.checker.check_model(result.model, full_check=True)
    assert result.changed
    assert not PlaceQdq([Placement(inner, COARSE, "r")]).run(result.model).changed
    feeds = random_feeds(result.model, 0, size=20)
    a = numerics.fake_quantize(-feeds["x"], COARSE)
    np.testing.assert_allclose(ort_run(result.model, feeds)["y"], np.abs(a) + np.exp(a), rtol=1e-6)


BRANCHES = """g (float[N] x, bool c) => (float[N] y) {{ {before} ["if"] y = If(c) <
    then_branch = t () => (float[N] r) {{ {then} }}, else_branch = e () => (float[N] s) {{ {other} }}> }}"""


def test_a_pair_in_the_branch_that_reads_it() -> None:
    text = BRANCHES.format(before="a = Neg(x)", then='["n"] r = Abs(a)', other="s = Exp(a)")
    model = place(text, Placement("a", COARSE, "r", (("n", 0),)))
    (inner,) = [a.g for a in model.graph.node[-1].attribute if a.name == "then_branch"]
    assert [(list(n.input), list(n.output)) for n in inner.node] == [
        (["a", "a_scale", "a_zero_point"], ["a_QuantizeLinear_Output"]),
        (["a_QuantizeLinear_Output", "a_scale", "a_zero_point"], ["a_DequantizeLinear_Output"]),
        (["a_DequantizeLinear_Output"], ["r"]),
    ]
    assert {i.name for i in inner.initializer} == {"a_scale", "a_zero_point"}
    assert [n.op_type for n in model.graph.node] == ["Neg", "If"]


def test_a_pair_in_every_scope_that_reads_it_and_one_set_of_constants() -> None:
    text = BRANCHES.format(before='a = Neg(x) ["m"] b = Abs(a)', then='["n"] r = Abs(a)', other='["o"] s = Exp(a)')
    text = text.replace("float[N] y)", "float[N] y, float[N] b)")
    model = place(text, Placement("a", COARSE, "r", (("m", 0), ("n", 0), ("o", 0))))
    graphs = [model.graph, *(a.g for a in model.graph.node[-1].attribute)]
    assert [[n.op_type for n in g.node].count("QuantizeLinear") for g in graphs] == [1, 1, 1]
    assert [sorted(i.name for i in g.initializer) for g in graphs] == [["a_scale", "a_zero_point"], [], []]
    feeds = random_feeds(model, 0, size=20)
    a = numerics.fake_quantize(-feeds["x"], COARSE)
    np.testing.assert_allclose(ort_run(model, feeds)["y"], np.abs(a), rtol=1e-6)


def test_a_group_over_two_scopes() -> None:
    text = BRANCHES.format(before="", then='["n"] r = Abs(x)', other='["o"] s = Exp(x)')
    model = place(text, Placement("y", COARSE, "r", None, "y"), Placement("r", COARSE, "r", None, "y"))
    assert {i.name for i in model.graph.initializer} == {"y_scale", "y_zero_point"}
    for seed in (0, 1):
        feeds = random_feeds(model, seed, size=20)
        x = feeds["x"]
        expected = numerics.fake_quantize(np.abs(x) if feeds["c"] else np.exp(x), COARSE)
        np.testing.assert_allclose(ort_run(model, feeds)["y"], expected, rtol=1e-6)


def test_a_function_that_repeats_a_name() -> None:
    model = in_function(parse("g (float[N] x) => (float[N] y) { y = Neg(x) }"))
    result = PlaceQdq([Placement("x", COARSE, "r")]).run(model).model
    assert [n.op_type for n in result.graph.node] == ["QuantizeLinear", "DequantizeLinear", "body"]
    assert [n.op_type for n in result.functions[0].node] == ["Neg"]


def test_a_tensor_that_an_inner_scope_reads() -> None:
    text = """g (float[N] x, bool c) => (float[N] y) { a = Neg(x)
        y = If(c) <then_branch = t () => (float[N] r) { r = Abs(a) }, else_branch = e () => (float[N] s) { s = Exp(a) }> }"""
    model = place(text, Placement("a", COARSE, "r"))
    inner = [g.node[0].input[0] for g in (a.g for a in model.graph.node[-1].attribute)]
    assert inner == ["a_DequantizeLinear_Output", "a_DequantizeLinear_Output"]


@pytest.mark.parametrize(
    "placement",
    [Placement("no", COARSE, "r"), Placement("x", COARSE, "r", (("no", 0),)), Placement("x", COARSE, "r", (("n", 5),))],
)
def test_what_is_not_there(placement: Placement) -> None:
    with pytest.raises(ModelError, match="there is no") as caught:
        PlaceQdq([placement]).run(parse('g (float[N] x) => (float[N] y) { ["n"] y = Neg(x) }'))
    assert caught.value.code == "pass-precondition"
