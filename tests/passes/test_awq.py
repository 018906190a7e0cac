"""awq: the function is kept, and weights have the factors that were given."""

import numpy as np
from onnx import numpy_helper

from onnxqat.passes.awq import Awq
from tests.passes.checks import body, check_pass, in_function, in_if, operators, parse, run_checked

FACTORS = {"n": np.float32([4, 1, 0.5, 2])}
TEXT = """g (float[N,3,4] x) => (float[N,3,2] y) <float[4] gamma = {100, 1, 0.5, 2}, float[4] beta = {1, 2, 0, -1},
    float[4,2] k = {0.01, 0.02, 1, -2, 3, 1, 0.5, 0.1}> {
    n = LayerNormalization (x, gamma, beta) y = MatMul(n, k) }"""


def test_factors_are_those_given() -> None:
    before = parse(TEXT)
    result = run_checked(Awq(FACTORS), before, 1e-3)
    old, new = ({i.name: numpy_helper.to_array(i) for i in m.graph.initializer} for m in (before, result.model))
    np.testing.assert_allclose(new["k"], old["k"] * FACTORS["n"][:, None], rtol=1e-6)
    for name in ("gamma", "beta"):
        np.testing.assert_allclose(new[name], old[name] / FACTORS["n"], rtol=1e-6)


def test_left_alone() -> None:
    """Factors that are alike change nothing; a tensor that a residual connection reads has no place for any."""
    check_pass(Awq({"n": np.ones(4, np.float32)}), TEXT, None)
    check_pass(Awq(FACTORS), TEXT.replace("y = MatMul(n, k)", "m = Add(n, x) y = MatMul(n, k)"), None)


def test_inside_bodies_too() -> None:
    before = parse(TEXT)
    for wrapped, names in ((in_function(before), ["n"]), (in_if(before), ["then_n", "else_n"])):
        result = run_checked(Awq(dict.fromkeys(names, FACTORS["n"])), wrapped, 1e-3)
        assert result.changed
        assert operators(body(result.model)) == ["LayerNormalization", "MatMul"]
