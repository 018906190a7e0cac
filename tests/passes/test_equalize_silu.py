"""equalize-silu: the function is kept, and the channels in front of a SiLU have one size."""

import numpy as np
import onnx
import pytest

from onnxqat.passes.equalize_silu import LEVELS, EqualizeSilu, factors_of
from tests.passes.checks import (
    body,
    check_pass,
    in_function,
    in_if,
    operators,
    ort_run,
    parse,
    random_feeds,
    run_checked,
)

LOW, HIGH = np.float32([-100.0, -0.5, -1.0, -0.2]), np.float32([90.0, 1.0, 0.5, 0.1])
RANGES = {"x": (LOW, HIGH)}
SILU = "x = Conv(v, w, b) g = Sigmoid(x) y = Mul(x, g)"


def model(rest: str, weights: str, *, silu: str = SILU, outputs: str = "float[N,2,3,3] z") -> str:
    """A convolution of one channel to four, a SiLU, and what follows."""
    return f"""g (float[N,1,3,3] v) => ({outputs})
        <float[4,1,1,1] w = {{100, 1, -0.5, 0.1}}, float[4] b = {{5, 0.5, 0, -0.1}}, {weights}> {{ {silu} {rest} }}"""


FULL = "float[2,4,1,1] k = {0.01, 1, 2, 10, -0.02, 1, -2, -10}"
DEPTHWISE = "float[4,1,1,1] k = {0.01, 1, 2, 10}"


@pytest.mark.parametrize(
    ("rest", "weights", "outputs"),
    [
        ("z = Conv(y, k)", FULL, "float[N,2,3,3] z"),
        ("z = Conv <group = 4> (y, k)", DEPTHWISE, "float[N,4,3,3] z"),
        ("z = Conv <group = 2> (y, k)", "float[4,2,1,1] k = {0.01, 1, 2, 10, 0.02, 2, 1, 5}", "float[N,4,3,3] z"),
        (
            "z = Conv(y, k) t = Conv <group = 4> (y, d)",
            FULL + ", float[4,1,1,1] d = {0.01, 1, 2, 10}",
            "float[N,2,3,3] z, float[N,4,3,3] t",
        ),
    ],
    ids=["full", "depthwise", "grouped", "two readers"],
)
def test_channels_get_one_size(rest: str, weights: str, outputs: str) -> None:
    """The result of the Conv keeps its name, and each of its channels is as large as its factor says."""
    before = parse(model(rest, weights, outputs=outputs))
    # 1e-5 of values of some hundred: weights are divided and multiplied by numbers that are no powers of two.
    result = run_checked(EqualizeSilu(RANGES), before, atol=1e-3)
    assert result.changed
    assert [n.op_type for n in result.model.graph.node][:4] == ["Conv", "Mul", "Sigmoid", "Mul"]
    factors = factors_of(LOW, HIGH)
    assert factors is not None
    inner = [_with_output(m, "x") for m in (before, result.model)]
    feeds = random_feeds(before, 0)
    old, new = (ort_run(m, feeds)["x"] for m in inner)
    np.testing.assert_allclose(new * factors.reshape(4, 1, 1), old, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("two", [False, True], ids=["one reader", "two readers"])
def test_the_division_behind(two: bool) -> None:
    """The convolution in front stays as it is, and what the ones behind read has channels of one size."""
    rest = "z = Conv(y, k) t = Conv <group = 4> (y, d)" if two else "z = Conv(y, k)"
    weights = FULL + (", float[4,1,1,1] d = {0.01, 1, 2, 10}" if two else "")
    before = parse(model(rest, weights, outputs="float[N,2,3,3] z" + (", float[N,4,3,3] t" if two else "")))
    result = run_checked(EqualizeSilu(RANGES, behind=True), before, atol=1e-3)
    assert [n.op_type for n in result.model.graph.node][:5] == ["Conv", "Sigmoid", "Mul", "Mul", "Conv"]
    assert all(n.input[0] == "y_equalized" for n in result.model.graph.node[4:])
    factors = factors_of(LOW, HIGH, behind=True)
    assert factors is not None
    feeds = random_feeds(before, 0)
    old, new = ort_run(_with_output(before, "y"), feeds)["y"], ort_run(_with_output(result.model, "y_equalized"), feeds)
    np.testing.assert_allclose(new["y_equalized"] * factors.reshape(4, 1, 1), old, rtol=1e-5, atol=1e-6)
    # In front of the SiLU the first channel's -100 counts as -8; behind it nothing is below -0.28.
    assert factors_of(np.float32([-8, -8, -8, -8]), np.float32([9, 0.1, 0.1, 0.1])) is None
    assert factors_of(np.float32([-8, -8, -8, -8]), np.float32([9, 0.1, 0.1, 0.1]), behind=True) is not None


@pytest.mark.parametrize("behind", [False, True], ids=["in front", "behind"])
def test_inside_bodies_too(behind: bool) -> None:
    """A function keeps the tensor's name; the bodies of an If have their own names and their own ranges."""
    before = parse(model("z = Conv(y, k)", FULL))
    inner = ["Sigmoid", "Mul", "Mul"] if behind else ["Mul", "Sigmoid", "Mul"]
    for wrapped, names in ((in_function(before), ["x"]), (in_if(before), ["then_x", "else_x"])):
        result = run_checked(EqualizeSilu(dict.fromkeys(names, RANGES["x"]), behind=behind), wrapped, atol=1e-3)
        assert result.changed
        assert operators(body(result.model)) == ["Conv", *inner, "Conv"]


@pytest.mark.parametrize(
    ("silu", "rest", "outputs"),
    [
        (SILU, "z = Conv(y, k) t = Relu(y)", "float[N,2,3,3] z, float[N,4,3,3] t"),
        (SILU, "z = Conv(y, k)", "float[N,2,3,3] z, float[N,4,3,3] y"),
        (SILU, "z = Conv(y, k) t = Relu(x)", "float[N,2,3,3] z, float[N,4,3,3] t"),
        ("x = Conv(v, w, b) g = Sigmoid(x) y = Mul(g, g)", "z = Conv(y, k) t = Relu(x)", "float[N,2,3,3] z"),
        ("x = Conv(v, w, b) y = Relu(x)", "z = Conv(y, k)", "float[N,2,3,3] z"),
        ("u = Conv(v, w, b) x = Abs(u) g = Sigmoid(x) y = Mul(x, g)", "z = Conv(y, k)", "float[N,2,3,3] z"),
        ("c = Abs(b) x = Conv(v, w, c) g = Sigmoid(x) y = Mul(x, g)", "z = Conv(y, k)", "float[N,2,3,3] z"),
    ],
    ids=[
        "read by another operator",
        "graph output",
        "pre-activation read",
        "no SiLU",
        "Relu",
        "behind another operator",
        "computed bias",
    ],
)
def test_left_alone_where_others_read(silu: str, rest: str, outputs: str) -> None:
    check_pass(EqualizeSilu(RANGES), model(rest, FULL, silu=silu, outputs=outputs), None)


def test_tensors_without_ranges_are_left_alone() -> None:
    check_pass(EqualizeSilu({"v": RANGES["x"]}), model("z = Conv(y, k)", FULL), None)


def test_shared_weights_are_copied() -> None:
    """A weight that another Conv reads keeps its values for that one."""
    text = """g (float[N,4,3,3] v) => (float[N,4,3,3] z, float[N,4,3,3] t)
        <float[4,4,1,1] w = {9,0,0,0, 0,1,0,0, 0,0,1,0, 0,0,0,2}> {
        x = Conv(v, w) g = Sigmoid(x) y = Mul(x, g) z = Conv(y, w) t = Conv(v, w) }"""
    result = run_checked(EqualizeSilu(RANGES), parse(text), atol=1e-4)
    assert result.changed
    assert len({n.input[1] for n in result.model.graph.node if n.op_type == "Conv"}) == 3


def test_factors_need_a_spread() -> None:
    even = np.float32([10.0, 12.0, 9.0, 8.0])
    assert factors_of(-even, even) is None
    assert factors_of(np.zeros(4, np.float32), np.zeros(4, np.float32)) is None


def test_factors_are_few_bits() -> None:
    """127 levels of a power of two, the largest for the largest channel; a dead channel gets the smallest."""
    high = np.float32([100.0, 1.0, 0.1, 0.0, 0.5])
    factors = factors_of(-high, high)
    assert factors is not None
    smallest = factors.min()
    assert float(np.log2(smallest)).is_integer()
    levels = factors / smallest
    np.testing.assert_array_equal(levels, np.rint(levels))
    assert levels.max() == LEVELS
    # Rounded up: no channel becomes larger than the largest.
    assert (high / factors).max() <= high.max() / factors.max() * (1 + 1e-6)


def test_what_a_silu_does_not_tell_apart_does_not_count() -> None:
    """A channel that is far below zero all the time is no large channel."""
    low, high = np.float32([-14.0, -1.0, -1.0, -1.0]), np.float32([0.0, 1.0, 1.0, 1.0])
    assert factors_of(low, high) is None


def _with_output(graph: onnx.ModelProto, name: str) -> onnx.ModelProto:
    made = onnx.ModelProto()
    made.CopyFrom(graph)
    made.graph.output.append(onnx.ValueInfoProto(name=name))
    return made


def test_factors_may_be_powers_of_two_alone() -> None:
    for behind in (False, True):
        factors = factors_of(LOW, HIGH, behind=behind, powers=True)
        assert factors is not None
        assert (np.frexp(factors)[0] == 0.5).all()
        assert len(set(factors)) > 1
