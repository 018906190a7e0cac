"""high-bias-absorption: channels that stay above a value are lowered by it, and the layers behind make up for it."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxqat.passes.high_bias_absorption import HighBiasAbsorption
from tests.passes.checks import body, check_pass, in_function, in_if, operators, parse, run_checked

AMOUNTS = {"y": np.float32([50, 0, 3, 0])}
FRONT = "float[4,1,1,1] w = {1, 1, -0.5, 0.1}, float[4] b = {100, 0.5, 10, -0.1}"
FULL = "float[2,4,1,1] k = {0.01, 1, 2, 10, -0.02, 1, -2, -10}"
CONV = "x = Conv(v, w, b)"


def model(
    rest: str, weights: str = FULL, *, made: str = CONV, front: str = FRONT, out: str = "float[N,2,3,3] z"
) -> str:
    return f"g (float[N,1,3,3] v) => ({out}) <{front}, {weights}> {{ {made} {rest} }}"


def constant(proto: onnx.ModelProto, name: str) -> np.ndarray:
    return next(numpy_helper.to_array(i) for i in proto.graph.initializer if i.name == name)


@pytest.mark.parametrize(
    ("rest", "weights", "outputs"),
    [
        ("y = Relu(x) z = Conv(y, k)", FULL, "float[N,2,3,3] z"),
        ("y = Relu(x) z = Conv(y, k, c)", FULL + ", float[2] c = {1, 2}", "float[N,2,3,3] z"),
        (
            "y = Relu(x) z = Conv <group = 4> (y, k)",
            "float[4,1,2,1] k = {0.01, 1, 2, 10, 3, 4, 5, 6}",
            "float[N,4,2,3] z",
        ),
        (
            "r = Relu(x) p = MaxPool <kernel_shape = [3, 3]> (r) y = Flatten(p) z = Gemm <transB = 1> (y, k, c)",
            "float[2,4] k = {0.01, 1, 2, 10, -0.02, 1, -2, -10}, float[1,2] c = {1, 2}",
            "float[N,2] z",
        ),
    ],
    ids=["no bias behind", "bias behind", "depthwise", "pool, gemm"],
)
def test_the_layer_behind_makes_up_for_it(rest: str, weights: str, outputs: str) -> None:
    """Inputs are at most some 4, so that the two channels stay above what is absorbed."""
    result = run_checked(HighBiasAbsorption(AMOUNTS), parse(model(rest, weights, out=outputs)), 1e-3)
    assert result.changed
    np.testing.assert_allclose(constant(result.model, "b"), [50, 0.5, 7, -0.1], rtol=1e-6)


def test_a_batchnorm_needs_no_data() -> None:
    """c = max(0, beta - 3 gamma), which leaves beta = 3 gamma."""
    front = """float[4,1,1,1] w = {0.5, 1, -0.2, 0.1}, float[4] gamma = {1, 1, -2, 0.01}, float[4] beta = {100, 2, 20, -1},
        float[4] mean = {0, 0, 0, 0}, float[4] variance = {1, 1, 1, 1}"""
    made = "c = Conv(v, w) x = BatchNormalization(c, gamma, beta, mean, variance)"
    before = parse(model("y = Relu(x) z = Conv(y, k)", made=made, front=front))
    result = run_checked(HighBiasAbsorption(), before, 1e-3)
    np.testing.assert_allclose(constant(result.model, "beta"), [3, 2, 6, -1], rtol=1e-6)


@pytest.mark.parametrize(
    ("rest", "weights", "outputs"),
    [
        ("y = Relu(x) z = Conv <pads = [1, 1, 1, 1]> (y, k)", FULL, "float[N,2,5,5] z"),
        ('y = Relu(x) z = Conv <auto_pad = "SAME_UPPER"> (y, k)', FULL, "float[N,2,3,3] z"),
        ("y = Clip(x, zero, six) z = Conv(y, k)", FULL + ", float zero = {0}, float six = {6}", "float[N,2,3,3] z"),
        ("r = Relu(x) y = GlobalAveragePool(r) z = Conv(y, k)", FULL, "float[N,2,1,1] z"),
        ("y = Relu(x) z = Conv(y, k) t = Neg(y)", FULL, "float[N,2,3,3] z, float[N,4,3,3] t"),
        ("y = Relu(x) z = ConvTranspose(y, k)", "float[4,1,1,1] k = {1, 2, 3, 4}", "float[N,1,3,3] z"),
    ],
    ids=["padded", "padded by itself", "clip", "average", "read elsewhere", "transposed"],
)
def test_left_alone(rest: str, weights: str, outputs: str) -> None:
    result = check_pass(HighBiasAbsorption(AMOUNTS), model(rest, weights, out=outputs), None)
    assert any("pads with zeros" in r.message for r in result.remarks) == ("pad" in rest or "Transpose" in rest)


def test_inside_bodies_too() -> None:
    before = parse(model("y = Relu(x) z = Conv(y, k)"))
    for wrapped, names in ((in_function(before), ["y"]), (in_if(before), ["then_y", "else_y"])):
        result = run_checked(HighBiasAbsorption(dict.fromkeys(names, AMOUNTS["y"])), wrapped, 1e-3)
        assert result.changed
        assert operators([n for n in body(result.model) if n.op_type != "Constant"]) == ["Conv", "Relu", "Conv"]
