"""Rotary embeddings by halves and by neighbours."""

import pytest

from onnxqat.analysis.groups.find import find
from tests.backends.planning import graph

HEAD = """g (float[1,2,3,4] x, float[3,4] cos, float[3,4] sin) => (float[1,2,3,4] y) <int64[1] zero = {{0}}, int64[1] mid = {{2}},
    int64[1] far = {{9223372036854775807}}, int64[1] last = {{-1}}, int64[1] one = {{1}}, int64[2] halves = {{2, 2}}, float minus = {{-1}},
    int64[1] step = {{2}}, int64[4] whole = {{1, 2, 3, 4}}> {{ p = Mul(x, cos) {} t = Mul(r, sin) y = Add(p, t) }}"""


@pytest.mark.parametrize(
    "rotated",
    [
        "b = Slice(x, mid, far, last, one) n = Neg(b) a = Slice(x, zero, mid, last, one) r = Concat <axis = -1> (n, a)",
        "a, b = Split <axis = -1> (x, halves) n = Neg(b) r = Concat <axis = -1> (n, a)",
        "a, b = Split <axis = -1> (x, halves) n = Mul(b, minus) r = Concat <axis = -1> (n, a)",
        """b = Slice(x, one, far, last, step) n = Neg(b) a = Slice(x, zero, far, last, step) u = Unsqueeze(n, last)
        v = Unsqueeze(a, last) c = Concat <axis = -1> (u, v) r = Reshape(c, whole)""",
    ],
)
def test_forms(rotated: str) -> None:
    (group,) = find(graph(HEAD.format(rotated)))
    assert group.kind == "RotaryEmbedding"
    assert [v.name for v in group.inputs if v is not None] == ["x", "cos", "sin"]
    assert group.output.name == "y"
    assert group.is_closed


def test_a_sum_of_products_is_none() -> None:
    assert find(graph(HEAD.format("n = Neg(x) r = Concat <axis = -1> (n)"))) == ()
