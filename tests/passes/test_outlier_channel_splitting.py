"""outlier-channel-splitting: the function is kept, and the largest weights are halved."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxqat.passes.outlier_channel_splitting import OutlierChannelSplitting, halves
from tests.passes.checks import body, check_pass, in_function, in_if, operators, parse, run_checked

FRONT = "float[4,1,1,1] w = {1, 2, -0.5, 0.1}, float[4] b = {5, 0.5, 0, -0.1}"
FULL = "float[2,4,1,1] k = {0.01, 1, 2, 10, -0.02, 1, -2, -8}"


def model(rest: str, weights: str = FULL, *, out: str = "float[N,2,3,3] z") -> str:
    return f"g (float[N,1,3,3] v) => ({out}) <{FRONT}, {weights}> {{ x = Conv(v, w, b) {rest} }}"


def constant(proto: onnx.ModelProto, name: str) -> np.ndarray:
    return next(numpy_helper.to_array(i) for i in proto.graph.initializer if i.name == name)


@pytest.mark.parametrize(
    ("rest", "weights", "outputs"),
    [
        ("y = Relu(x) z = Conv(y, k)", FULL, "float[N,2,3,3] z"),
        ("y = Clip(x, zero, six) z = Conv(y, k)", FULL + ", float zero = {0}, float six = {6}", "float[N,2,3,3] z"),
        ("y = Relu(x) z = ConvTranspose(y, k)", "float[4,1,1,1] k = {1, -1, 2, 10}", "float[N,1,3,3] z"),
        (
            "y = Relu(x) f = Flatten(y) z = Gemm <transB = 1> (f, k)",
            f"float[1,36] k = {{{', '.join(map(str, range(1, 37)))}}}",
            "float[N,1] z",
        ),
    ],
    ids=["relu", "clip", "transposed", "flatten"],
)
def test_the_largest_weight_is_halved(rest: str, weights: str, outputs: str) -> None:
    before = onnx.shape_inference.infer_shapes(parse(model(rest, weights, out=outputs)))  # states shapes between
    result = run_checked(OutlierChannelSplitting(0.25), before, 1e-3)  # of values of some hundred
    old, new = (np.abs(constant(m, "k")) for m in (before, result.model))
    assert constant(result.model, "w").shape == (5, 1, 1, 1)
    assert constant(result.model, "b").tolist() == [*constant(before, "b").tolist(), constant(before, "b")[3]]
    assert new.max() < old.max()
    assert new.size * 4 == old.size * 5


def test_products_with_a_bias_behind() -> None:
    text = """g (float[N,3,2] v) => (float[N,3,2] z)
        <float[2,2] w = {4, 1, 2, 0.5}, float[2] b = {3, 1}, float[2,2] k = {0.01, 0.02, 1, 3}> {
        p = MatMul(v, w) x = Add(b, p) y = Relu(x) z = MatMul(y, k) }"""
    result = run_checked(OutlierChannelSplitting(0.5), parse(text), 1e-5)
    assert constant(result.model, "b").tolist() == [3, 1, 1]
    assert np.abs(constant(result.model, "k")).max() == 1.5


def test_activations_are_split_in_front() -> None:
    """The channel that is largest on data is made in halves, and the weights behind stay whole."""
    before = parse(model("y = Relu(x) z = Conv(y, k)"))
    step = OutlierChannelSplitting(0.25, ranges={"y": np.float32([1, 9, 3, 2])})
    result = run_checked(step, before, 1e-4)
    assert constant(result.model, "w").ravel().tolist() == [1, 1, -0.5, np.float32(0.1), 1]
    np.testing.assert_array_equal(constant(result.model, "k")[:, 4], constant(before, "k")[:, 1])


def test_the_largest_may_be_split_again() -> None:
    origins, factors = halves(np.array([1.0, 10.0, 4.0]), 3)
    assert origins.tolist() == [0, 1, 2, 1, 1, 1]
    assert factors.tolist() == [1, 0.25, 1, 0.25, 0.25, 0.25]


@pytest.mark.parametrize(
    ("rest", "weights", "outputs"),
    [
        ("y = Relu(x) z = Conv <group = 4> (y, k)", "float[4,1,1,1] k = {1, 2, 3, 9}", "float[N,4,3,3] z"),
        ("y = PRelu(x, s) z = Conv(y, k)", FULL + ", float[4,1,1] s = {1, 2, 3, 4}", "float[N,2,3,3] z"),
        ("y = Relu(x) z = Conv(y, k) t = Neg(y)", FULL, "float[N,2,3,3] z, float[N,4,3,3] t"),
    ],
    ids=["depthwise", "prelu", "read elsewhere"],
)
def test_left_alone(rest: str, weights: str, outputs: str) -> None:
    check_pass(OutlierChannelSplitting(), model(rest, weights, out=outputs), None)


def test_inside_bodies_too() -> None:
    before = parse(model("y = Relu(x) z = Conv(y, k)"))
    for wrapped in (in_function(before), in_if(before)):
        result = run_checked(OutlierChannelSplitting(), wrapped, 1e-4)
        assert result.changed
        assert operators(body(result.model)) == ["Conv", "Relu", "Conv"]
