"""Activation functions are recognised whatever form an exporter wrote them in."""

import pytest

from onnxqat.analysis.groups.find import find
from tests.backends.planning import graph

HEAD = """g (float[2,4] x, float[2,4] z) => (float[2,4] y) <float one = {{1}}, float half = {{0.5}}, float two = {{2}},
    float root = {{1.41421354}}, float inverse = {{0.707106769}}, float three = {{3}}, float six = {{6}}, float k = {{0.044715}},
    float c = {{0.7978845608}}, float ck = {{0.035677408}}, float q = {{1.702}}, float zero = {{0}}> {{ {} }}"""
FORMS = {
    # torch, both exporters: erf of a quotient
    ("Gelu", "erf", "torch"): "d = Div(x, root) e = Erf(d) s = Add(e, one) p = Mul(x, s) y = Mul(p, half)",
    ("Gelu", "erf", "dynamo"): "d = Div(x, root) e = Erf(d) s = Add(e, one) h = Mul(half, x) y = Mul(h, s)",
    ("Gelu", "erf", "folded half"): "d = Mul(x, inverse) e = Erf(d) h = Mul(e, half) s = Add(h, half) y = Mul(x, s)",
    # Hugging Face's NewGELU and onnxsim's results of it
    (
        "Gelu",
        "tanh",
        "pow",
    ): "w = Pow(x, three) v = Mul(w, k) u = Add(x, v) i = Mul(u, c) t = Tanh(i) s = Add(t, one) h = Mul(x, half) y = Mul(h, s)",
    (
        "Gelu",
        "tanh",
        "products",
    ): "w = Mul(x, x) v = Mul(w, x) m = Mul(v, k) u = Add(x, m) i = Mul(c, u) t = Tanh(i) s = Add(one, t) p = Mul(x, s) y = Mul(half, p)",
    (
        "Gelu",
        "tanh",
        "factored",
    ): "w = Mul(x, x) v = Mul(w, ck) u = Add(v, c) i = Mul(x, u) t = Tanh(i) s = Add(t, one) h = Mul(x, half) y = Mul(h, s)",
    ("Gelu", "sigmoid", "quick"): "m = Mul(x, q) g = Sigmoid(m) y = Mul(x, g)",
    ("Silu", "", "sigmoid"): "g = Sigmoid(x) y = Mul(x, g)",
    ("Silu", "", "exp"): "n = Neg(x) e = Exp(n) s = Add(e, one) y = Div(x, s)",
    ("HardSwish", "", "hardsigmoid"): "g = HardSigmoid <alpha = 0.166666667, beta = 0.5> (x) y = Mul(x, g)",
    ("HardSwish", "", "clip"): "s = Add(x, three) c6 = Clip(s, zero, six) m = Mul(x, c6) y = Div(m, six)",
    ("HardSwish", "", "clip first"): "s = Add(x, three) c6 = Clip(s, zero, six) m = Div(c6, six) y = Mul(m, x)",
    ("Mish", "", "softplus"): "f = Softplus(x) t = Tanh(f) y = Mul(x, t)",
    ("Mish", "", "log"): "e = Exp(x) s = Add(e, one) f = Log(s) t = Tanh(f) y = Mul(x, t)",
}


@pytest.mark.parametrize("form", FORMS, ids=lambda form: "-".join(form))
def test_forms(form: tuple[str, str, str]) -> None:
    (group,) = find(graph(HEAD.format(FORMS[form])))
    assert (group.kind, group.form) == form[:2]
    assert [v.name for v in group.inputs if v is not None] == ["x"]
    assert group.output.name == "y"
    assert len(group.nodes) == FORMS[form].count("=") - FORMS[form].count("alpha") - FORMS[form].count("beta")


def test_a_residual_sum_behind_is_no_part_of_it() -> None:
    body = FORMS["Gelu", "erf", "torch"].replace("y =", "a =") + " y = Add(x, a)"
    (group,) = find(graph(HEAD.format(body)))
    assert group.output.name == "a"


@pytest.mark.parametrize(
    "body",
    [
        "d = Div(x, root) e = Erf(d) s = Add(e, two) p = Mul(x, s) y = Mul(p, half)",  # another number
        "d = Div(x, root) e = Erf(d) s = Add(e, one) p = Mul(z, s) y = Mul(p, half)",  # a gate: another tensor
        "g = Sigmoid(x) y = Mul(z, g)",
        "g = Sigmoid(x) p = Mul(x, g) y = Add(p, g)",  # what is inside is read outside
        "g = Sigmoid(x) y = Add(x, g)",
    ],
)
def test_what_is_none(body: str) -> None:
    assert find(graph(HEAD.format(body))) == ()
