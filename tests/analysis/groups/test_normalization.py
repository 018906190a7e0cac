"""LayerNormalization and RMSNormalization in the forms of exporters."""

import pytest

from onnxqat.analysis.groups.find import find
from tests.backends.planning import graph

HEAD = """<ir_version: 10, opset_import: ["" : 17]> g (float[2,4] x) => (float[2,4] y, float[2,1] r) <float two = {{2}},
    float eps = {{0.001}}, float minus = {{-0.5}}, float one = {{1}}, float[4] gamma = {{1, 2, 3, 4}}, float[4] beta = {{1, 2, 3, 4}}> {{
    {} r = ReduceMean <axes = [-1]> (x) }}"""
VARIANCE = "v = ReduceMean <axes = [-1]> (q) a = Add(v, eps)"
CENTRED = "m = ReduceMean <axes = [-1]> (x) d = Sub(x, m) q = Pow(d, two) " + VARIANCE
SQUARED = "q = Mul(x, x) " + VARIANCE


@pytest.mark.parametrize(
    ("body", "kind", "inputs"),
    [
        (
            CENTRED + " s = Sqrt(a) n = Div(d, s) g = Mul(n, gamma) y = Add(g, beta)",
            "LayerNormalization",
            ["x", "gamma", "beta"],
        ),
        (
            CENTRED + " s = Sqrt(a) i = Reciprocal(s) n = Mul(d, i) g = Mul(gamma, n) y = Add(beta, g)",
            "LayerNormalization",
            ["x", "gamma", "beta"],
        ),
        (CENTRED + " s = Sqrt(a) y = Div(d, s)", "LayerNormalization", ["x"]),
        # Llama: torch's rsqrt is a root and a reciprocal, or one over a root
        (
            SQUARED + " s = Sqrt(a) i = Reciprocal(s) n = Mul(x, i) y = Mul(gamma, n)",
            "RMSNormalization",
            ["x", "gamma"],
        ),
        (SQUARED + " s = Sqrt(a) i = Div(one, s) n = Mul(x, i) y = Mul(n, gamma)", "RMSNormalization", ["x", "gamma"]),
        (SQUARED + " i = Pow(a, minus) n = Mul(x, i) y = Mul(n, gamma)", "RMSNormalization", ["x", "gamma"]),
        # a half model's norm is computed in float32: once all is float32, the Cast changes nothing
        (
            SQUARED + " s = Sqrt(a) i = Div(one, s) n = Mul(x, i) c = Cast <to = 1> (n) y = Mul(gamma, c)",
            "RMSNormalization",
            ["x", "gamma"],
        ),
    ],
)
def test_forms(body: str, kind: str, inputs: list[str]) -> None:
    made = graph(HEAD.format(body))
    for node in made:  # as inference would have it
        node.outputs[0].dtype = made.inputs[0].dtype
    (group,) = find(made)
    assert group.kind == kind
    assert [v.name for v in group.inputs if v is not None] == inputs
    assert group.output.name == "y"
    assert group.attributes == {"epsilon": pytest.approx(0.001), "axes": (-1,)}


def test_a_root_that_something_else_reads_makes_it_none() -> None:
    body = SQUARED + " s = Sqrt(a) n = Div(x, s) g = Mul(n, gamma) y = Add(g, s)"
    assert find(graph(HEAD.format(body))) == ()
