"""Floats that were cast from integers are on no grid."""

import pytest

from tests.backends.planning import edges, plan

ROWS = """g (float[1,4096] x) => (float[1,20] rows, float[1,20] columns) <int64[1] k = {20}, float width = {64}> {
    v, i = TopK(x, k) f = Cast<to = 1>(i) q = Div(f, width) rows = Floor(q) p = Mul(rows, width) columns = Sub(f, p) }"""
STEPS = """g (int64[N] t, float[N,4] x) => (float[N,4] y) <float[1,4] rates = {1, 2, 3, 4}, int64[1] axis = {1}> {
    f = Cast<to = 1>(t) c = Unsqueeze(f, axis) a = Mul(c, rates) s = Sin(a) y = Mul(s, x) }"""


@pytest.mark.parametrize("backend", ["onnxruntime-cpu", "qnn-htp", "rknn", "tidl"])
def test_rows_and_columns(backend: str) -> None:
    assert edges(plan(ROWS, backend)) == {}


def test_steps_of_time_until_they_are_data() -> None:
    assert set(edges(plan(STEPS))) == {"s", "x", "y"}


def test_samples_of_8_bits_are_data() -> None:
    text = "g (uint8[1,4] x) => (float[1,4] y) <float a = {0.1}, float b = {1}> { f = Cast<to = 1>(x) s = Mul(f, a) y = Add(s, b) }"
    assert {"f", "s"} <= set(edges(plan(text)))
