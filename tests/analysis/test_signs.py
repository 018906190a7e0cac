"""Tensors that cannot be negative."""

import pytest

from onnxqat.analysis.signs import is_non_negative
from tests.backends.planning import graph

HEADER = """g (float[1,2,4,4] x, float[1,2,4,4] z) => (float y)
    <float zero = {0}, float low = {-1}, float[1] half = {0.5}, int64[8] pads = {0,0,1,1,0,0,1,1}, int64[4] shape = {2,1,4,4},
    int64[1] axes = {1}>"""


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("t = Relu(x)", True),
        ("t = Sigmoid(x)", True),
        ("t = Tanh(x)", False),
        ("t = Neg(x)", False),
        ("t = Clip(x, zero)", True),
        ("t = Clip(x, low)", False),
        ("t = Clip(x, , zero)", False),
        ("a = Relu(x) b = Sigmoid(z) t = Add(a, b)", True),
        ("a = Relu(x) t = Add(a, z)", False),
        ("a = Relu(x) t = Mul(a, half)", True),
        ("a = Relu(x) t = Mul(a, low)", False),
        ("a = Relu(x) b = MaxPool<kernel_shape=[2,2]>(a) c = Transpose(b) t = Reshape(c, shape)", True),
        ("a = Relu(x) b = Relu(z) t = Concat<axis = 1>(a, b)", True),
        ("a = Relu(x) t = Concat<axis = 1>(a, z)", False),
        ("a = Relu(x) t = ReduceSum(a, axes)", True),
        ("t = ReduceSum(x, axes)", False),
        ("a = Relu(x) t = Pad(a, pads)", True),
        ("a = Relu(x) t = Pad(a, pads, low)", False),
        ("a = Relu(x) b = Neg(a) t = Transpose(b)", False),
        ("t = Transpose(x)", False),
    ],
)
def test_sign(body: str, expected: bool) -> None:
    made = graph(f"{HEADER} {{ {body} y = ReduceSum<keepdims = 0>(t) }}")
    value = next(v for node in made for v in node.outputs if v.name == "t")
    assert is_non_negative(value) is expected
