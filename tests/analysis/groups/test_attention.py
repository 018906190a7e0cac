"""Attention in the forms of exporters."""

import pytest

from onnxqat.analysis.groups.find import find
from tests.backends.planning import graph

HEAD = """g (float[1,2,3,4] q, float[1,2,4,3] k, float[1,2,3,4] v, float[1,1,3,3] m, bool[1,1,3,3] b) => (float[1,2,3,4] y)
    <float s = {{0.5}}, float r = {{0.70710678}}, float two = {{2}}, float low = {{-1e30}}, float[4,4] w = {{1, 2, 3, 4, 5, 6, 7, 8,
    9, 10, 11, 12, 13, 14, 15, 16}}, float[4] bias = {{1, 2, 3, 4}}> {{ {} }}"""
BEHIND = " a = Softmax <axis = -1> (x) y = MatMul(a, v)"


@pytest.mark.parametrize(
    ("body", "mask"),
    [
        ("x = MatMul(q, k)", None),
        ("p = Mul(q, r) t = Mul(k, r) x = MatMul(p, t)", None),  # torch's scaled_dot_product_attention
        ("h = MatMul(q, k) x = Mul(h, s)", None),
        ("h = MatMul(q, k) c = Div(h, two) x = Add(c, m)", "m"),  # Hugging Face's BERT
        ("p = Mul(q, r) t = Mul(k, r) c = MatMul(p, t) x = Add(m, c)", "m"),
        ("h = MatMul(q, k) c = Div(h, two) x = Where(b, low, c)", "b"),
    ],
)
def test_forms(body: str, mask: str | None) -> None:
    (group,) = find(graph(HEAD.format(body + BEHIND)))
    assert group.kind == "Attention"
    assert [v.name if v is not None else None for v in group.inputs] == ["q", "k", "v", mask]
    assert group.attributes["scale"] == pytest.approx(0.5 if body != "x = MatMul(q, k)" else 1.0)
    assert len(group.nodes) == (body + BEHIND).count("=") - 1


@pytest.mark.parametrize(
    "body",
    [
        "h = MatMul(q, w) x = Add(h, bias)"
        + " a = Softmax <axis = -1> (x) y = MatMul(a, k)",  # a linear layer in front
        "x = MatMul(q, k) a = Softmax <axis = 1> (x) y = MatMul(a, v)",
        "x = MatMul(q, k) a = Softmax <axis = -1> (x) n = Neg(a) y = MatMul(n, v)",
    ],
)
def test_what_is_none(body: str) -> None:
    assert find(graph(HEAD.format(body))) == ()
