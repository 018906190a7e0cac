"""integer-functions: operators between pairs become calls of functions on codes."""

import numpy as np
import onnx
import pytest

from onnxqat.graph import io
from onnxqat.integer_functions import calls
from onnxqat.passes.integer_functions import IntegerFunctions
from onnxqat.runtime.session import Session

HEAD = """<ir_version: 8, opset_import: ["" : 17]> g (float[N, 5, 16] x) => (float[N, 5, 16] y)
<float s = {0.0625}, uint8 z = {128}, float t = {0.00390625}, uint8 u = {0}, float[16] gamma>"""
PAIRED = (
    HEAD
    + """{
    q = QuantizeLinear (x, s, z)
    d = DequantizeLinear (q, s, z)
    ["the_softmax"] f = Softmax <axis = 1> (d)
    c = QuantizeLinear (f, t, u)
    y = DequantizeLinear (c, t, u)
}"""
)
NORMALIZED = PAIRED.replace("Softmax <axis = 1> (d)", "LayerNormalization <axis = -1> (d, gamma)")
CHAIN = (
    HEAD
    + """{
    q = QuantizeLinear (x, s, z)
    d = DequantizeLinear (q, s, z)
    f = Sigmoid (d)
    c = QuantizeLinear (f, t, u)
    e = DequantizeLinear (c, t, u)
    h = Sqrt (e)
    k = QuantizeLinear (h, t, u)
    y = DequantizeLinear (k, t, u)
}"""
)


def model(text: str) -> onnx.ModelProto:
    made = onnx.parser.parse_model(text)
    names = {declared.name for declared in made.graph.value_info}
    for name in names:
        values = np.random.default_rng(1).uniform(0.5, 1.5, 16).astype(np.float32)
        made.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    del made.graph.value_info[:]
    return made


def outputs(made: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    return np.asarray(Session(io.load(made), optimize=False, what="the model").run({"x": x})["y"])


@pytest.mark.parametrize(
    ("text", "functions"),
    [
        (PAIRED, {"Softmax_uint8_uint8"}),
        (CHAIN, {"Sigmoid_uint8_uint8_lut8", "Sqrt_uint8_uint8_lut8"}),
        (NORMALIZED, {"LayerNormalization_uint8_uint8"}),
    ],
)
def test_calls_keep_the_function_within_their_bound(text: str, functions: set[str]) -> None:
    before = model(text)
    result = IntegerFunctions().run(before)
    assert result.changed
    onnx.checker.check_model(result.model, full_check=True)
    assert {f.name for f in result.model.functions} == functions
    assert not {"Softmax", "Sigmoid", "Sqrt", "LayerNormalization"} & {n.op_type for n in result.model.graph.node}
    x = np.random.default_rng(0).standard_normal((40, 5, 16)).astype(np.float32)
    codes = 0.00390625
    assert np.abs(outputs(result.model, x) - outputs(before, x)).max() <= 1.01 * codes * (3 if text is CHAIN else 1)
    assert not IntegerFunctions().run(result.model).changed


@pytest.mark.parametrize("text", [PAIRED, CHAIN, NORMALIZED])
def test_expanded_calls_become_the_same_calls(text: str) -> None:
    called = io.load(IntegerFunctions().run(model(text)).model)
    count = len(list(calls.places(called)))
    values = {name: v.const_value.numpy() for name, v in called.graph.initializers.items() if v.const_value is not None}
    for here in calls.places(called):
        weights = calls.parameters(here) if here.function.weights else {}
        as_float32 = {name: value.astype(np.float32).astype(np.float64) for name, value in weights.items()}
        for name, value in calls.constants(here, *calls.grids(here), as_float32).items():
            np.testing.assert_array_equal(value, values[name])
    assert calls.expand(called) == count
    assert not called.functions


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (PAIRED.replace("y = Deq", "w = Deq").replace("c = Q", "y = Identity (f) c = Q"), "read in float"),
        (PAIRED.replace("(d)", "(x)"), "no pair is in front of it"),
        (NORMALIZED.replace("(d, gamma)", "(d, other)").replace("f =", "other = Abs (gamma) f ="), "not constant"),
        (NORMALIZED.replace("axis = -1", "axis = 2"), "the rank of its operand is unknown"),
        (
            PAIRED.replace("float s = {0.0625}, uint8 z = {128}", "float[5] s = {1,1,1,1,1}, uint8[5] z = {9,9,9,9,9}"),
            "one channel",
        ),
    ],
)
def test_left_alone(text: str, reason: str) -> None:
    result = IntegerFunctions(("Softmax", "LayerNormalization")).run(model(text))
    assert not result.changed
    assert any(reason in remark.message for remark in result.remarks)


def test_only_what_is_named() -> None:
    result = IntegerFunctions(("Sqrt",)).run(model(CHAIN))
    assert [f.name for f in result.model.functions] == ["Sqrt_uint8_uint8_lut8"]
    assert "Sigmoid" in [node.op_type for node in result.model.graph.node]


def test_a_model_without_what_is_named() -> None:
    result = IntegerFunctions(("Gelu",)).run(model(CHAIN))
    assert not result.changed
    assert [remark.message for remark in result.remarks] == [
        "the model has no operator that is to become an integer function"
    ]


def test_long_codes_have_as_many_segments_as_asked_for() -> None:
    wide = PAIRED.replace('"" : 17', '"" : 21').replace("ir_version: 8", "ir_version: 10").replace("uint8", "uint16")
    wide = (
        wide.replace("{128}", "{32768}").replace("0.0625", "0.000244140625").replace("0.00390625", "0.0000152587890625")
    )
    before = model(wide.replace("Softmax <axis = 1> (d)", "Sigmoid (d)"))
    result = IntegerFunctions(lut=6).run(before)
    assert [f.name for f in result.model.functions] == ["Sigmoid_uint16_uint16_lut6"]
    assert [i.dims for i in result.model.graph.initializer if i.name.endswith("_table")] == [[65]]
    x = np.random.default_rng(0).uniform(-8, 8, (40, 5, 16)).astype(np.float32)
    error = np.abs(outputs(result.model, x) - outputs(before, x)).max()
    assert 1e-5 < error <= 0.0963 * 0.25**2 / 8 + 2 / 65536  # a segment is a quarter wide


SUMMED = """<ir_version: 8, opset_import: ["" : 17]> g (float[N, 5, 16] x, float[N, 5, 16] w) => (float[N, 5, 16] y)
<float s = {0.0625}, uint8 z = {128}, float t = {0.03125}, uint8 u = {0}, float h = {0.5}, float hs = {0.001953125},
 uint8 hz = {0}, float[5, 1] b = {0.1, 0.2, 0.3, 0.4, 0.5}>
{
    q = QuantizeLinear (x, s, z)
    d = DequantizeLinear (q, s, z)
    k = QuantizeLinear (w, s, z)
    e = DequantizeLinear (k, s, z)
    hq = QuantizeLinear (h, hs, hz)
    hd = DequantizeLinear (hq, hs, hz)
    m = Mul (hd, d)
    mq = QuantizeLinear (m, s, z)
    md = DequantizeLinear (mq, s, z)
    n = Sub (e, md)
    nq = QuantizeLinear (n, s, z)
    nd = DequantizeLinear (nq, s, z)
    o = Add (nd, b)
    f = Relu (o)
    c = QuantizeLinear (f, t, u)
    y = DequantizeLinear (c, t, u)
}"""
"""``relu(w - x / 2 + b)``, with pairs between all operators."""


def summed(text: str) -> tuple[np.ndarray, np.ndarray, onnx.ModelProto, bool]:
    """Results before and behind the pass, which is asked for weighted sums, the model, and whether it changed."""
    before = onnx.parser.parse_model(text)
    result = IntegerFunctions(("WeightedSum",)).run(before)
    random = np.random.default_rng(0)
    given = {name: random.uniform(-4, 4, (40, 5, 16)).astype(np.float32) for name in "xw"}
    first, second = (
        np.asarray(Session(io.load(made), optimize=False, what="the model").run(given)["y"])
        for made in (before, result.model)
    )
    exact = np.maximum(given["w"] - given["x"] / 2 + np.array([[0.1], [0.2], [0.3], [0.4], [0.5]]), 0)
    return np.abs(first - exact), np.abs(second - exact), result.model, result.changed


def test_a_weighted_sum_is_one_call_with_one_rounding() -> None:
    before, after, made, _ = summed(SUMMED)
    onnx.checker.check_model(made, full_check=True)
    kinds = [node.op_type for node in made.graph.node]
    assert kinds == ["QuantizeLinear"] * 2 + ["WeightedSum2_uint8_uint8", "DequantizeLinear"]
    constants = {i.name: list(i.dims) for i in made.graph.initializer}
    # The bias has the name of the constant that it is; a weight of -h is none of the file's.
    assert (constants["c_weight_2_quantized"], constants["b_quantized"]) == ([], [5, 1])
    # Half a step of each operand and of the result; with the pairs between, half a step of each of these on top.
    bound = 0.0625 / 2 * 1.5 + 0.03125 / 2
    assert after.max() <= bound * 1.001
    assert before.max() > bound * 1.3
    called = io.load(made)
    (here,) = calls.places(called)
    values = {name: v.const_value.numpy() for name, v in called.graph.initializers.items() if v.const_value is not None}
    as_float32 = {name: v.astype(np.float32).astype(np.float64) for name, v in calls.parameters(here).items()}
    for name, value in calls.constants(here, *calls.grids(here), as_float32).items():
        np.testing.assert_array_equal(value, values[name])
    calls.expand(called, as_float=True)
    (shown,) = [node for node in called.graph if node.op_type == "WeightedSum"]
    assert [str(v.name) for v in shown.inputs] == ["k_DequantizeLinear_Output", "q_DequantizeLinear_Output"]


@pytest.mark.parametrize("shift", [[2**30], [3, 3], [-1]])
def test_a_call_with_other_constants_is_a_function_like_any_other(shift: list[int]) -> None:
    made = summed(SUMMED)[2]
    (held,) = [i for i in made.graph.initializer if i.name.endswith("y_shift")]
    shape = () if len(shift) == 1 else (len(shift),)
    held.CopyFrom(onnx.helper.make_tensor(held.name, held.data_type, shape, shift))
    assert list(calls.places(io.load(made))) == []
    assert list(calls.places(io.load(summed(SUMMED)[2])))


@pytest.mark.parametrize(
    "text",
    [
        SUMMED.replace("uint8 u = {0}", "uint8 u = {9}"),
        SUMMED.replace("float[N, 5, 16] y)", "float[N, 5, 16] y, float[N, 5, 16] o)"),
    ],
    ids=["a Relu inside of the grid", "a sum that is an output"],
)
def test_the_last_operator_of_a_sum_stays_where_it_has_to(text: str) -> None:
    kinds = [node.op_type for node in summed(text)[2].graph.node]
    assert kinds.count("Add") == kinds.count("WeightedSum2_uint8_uint8") == 1


@pytest.mark.parametrize(
    "text",
    [
        SUMMED.replace("m = Mul (hd, d)", "m = Mul (e, d)")
        .replace("Sub", "Add")
        .replace("Add (nd, b)", "Identity (nd)"),
        SUMMED.replace("float[5, 1] b = {0.1", "float[5, 1] b = {3e38"),
    ],
    ids=["a product of two tensors", "a bias that is too large"],
)
def test_sums_left_alone(text: str) -> None:
    assert not summed(text)[3]


def test_a_sum_of_two_stays_an_operator_that_targets_have() -> None:
    text = SUMMED.replace("m = Mul (hd, d)", "m = Identity (d)").replace("o = Add (nd, b)", "o = Identity (nd)")
    assert not summed(text.replace("Sub", "Add"))[3]
    assert [n.op_type for n in summed(text)[2].graph.node if n.domain] == ["WeightedSum2_uint8_uint8"]


def test_a_part_that_something_else_reads_is_an_operand() -> None:
    text = SUMMED.replace("float[N, 5, 16] y)", "float[N, 5, 16] y, float[N, 5, 16] md)")
    made = summed(text)[2]
    assert [n.op_type for n in made.graph.node if n.domain] == ["WeightedSum2_uint8_uint8"]
    assert "Mul" in [n.op_type for n in made.graph.node]


@pytest.mark.parametrize("paired", [False, True])
def test_a_sum_with_a_constant_that_has_no_codes_is_a_call(paired: bool) -> None:
    """Targets have a kernel for a sum of codes, and none where one operand is a float number."""
    constant = "k = QuantizeLinear (v, s, z) e = DequantizeLinear (k, s, z)" if paired else "e = Identity (d)"
    added = f"{constant} f = Add (d, {'e' if paired else 'v'})"
    text = HEAD.replace("float[16] gamma", "float[16] v") + PAIRED[len(HEAD) :].replace(
        '["the_softmax"] f = Softmax <axis = 1> (d)', added
    )
    before = model(text)
    result = IntegerFunctions(("WeightedSum",)).run(before)
    assert result.changed == (not paired)
    x = np.random.default_rng(0).uniform(-4, 0, (40, 5, 16)).astype(np.float32)
    assert np.abs(outputs(result.model, x) - outputs(before, x)).max() <= 1.01 * 0.00390625


def test_a_sum_begins_behind_what_is_none_of_it() -> None:
    """A quotient by codes of zero in front of a Neg is no part of its sum; the Neg is a call by itself."""
    text = HEAD.replace("float[16] gamma", "float v = {0.01}") + PAIRED[len(HEAD) :].replace(
        '["the_softmax"] f = Softmax <axis = 1> (d)',
        """k = QuantizeLinear (v, s, z) e = DequantizeLinear (k, s, z) r = Div (d, e)
        rq = QuantizeLinear (r, s, z) rd = DequantizeLinear (rq, s, z) f = Neg (rd)""",
    )
    result = IntegerFunctions(("WeightedSum",)).run(onnx.parser.parse_model(text))
    kinds = [node.op_type for node in result.model.graph.node]
    assert "Div" in kinds
    assert "Neg" not in kinds
