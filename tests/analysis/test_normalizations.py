"""Normalizations that an exporter wrote out stay float, with what is in front of them."""

import pytest

from tests.backends.planning import edges, plan, reasons, weight

LAYER_NORM = """g (float[2,4] x) => (float[2,4] y) <float[4,4] w = {w}, float two = {{2}}, float e = {{0.001}},
    int64[1] axes = {{-1}}, float[4] gamma = {{1, 2, 3, 4}}, float[4] beta = {{1, 2, 3, 4}}> {{
    h = MatMul(x, w) m = ReduceMean<axes = [-1]>(h) d = Sub(h, m) {square} v = ReduceMean<axes = [-1]>(q)
    a = Add(v, e) s = Sqrt(a) {division} g = Mul(n, gamma) b = Add(g, beta) y = MatMul(b, w) }}"""


@pytest.mark.parametrize("square", ["q = Pow(d, two)", "q = Mul(d, d)"])
@pytest.mark.parametrize(
    "division", ["n = Div(d, s)", "r = Reciprocal(s) n = Mul(d, r)", "r = Div(e, s) n = Mul(r, d)"]
)
@pytest.mark.parametrize("backend", ["onnxruntime-cpu", "tensorrt", "openvino-cpu"])
def test_a_normalization_that_is_written_out_stays_float(square: str, division: str, backend: str) -> None:
    text = LAYER_NORM.format(w=weight(4, 4), square=square, division=division)
    found = plan(f'<ir_version: 10, opset_import: ["" : 17]> {text}', backend)
    assert set(edges(found)) == {"x", "w", "b"}
    float_ones = {name for name, reason in found.float_nodes if "normalization" in reason}
    of_parts = {"onnxruntime-cpu": set(), "tensorrt": {"a_Add", "b_Add"}}  # the first has one operator of them
    assert float_ones >= of_parts.get(backend, {"a_Add", "g_Mul", "b_Add"})


def test_without_a_mean_too_and_only_such() -> None:
    text = """g (float[2,4] x) => (float[2,4] y) <float two = {2}, float e = {0.001}, int64[1] axes = {-1}> {
        q = Pow(x, two) v = ReduceMean<axes = [-1]>(q) a = Add(v, e) s = Sqrt(a) y = %s }"""
    header = '<ir_version: 10, opset_import: ["" : 17]> '
    assert "normalization" in reasons(plan(header + text % "Div(x, s)"))["a_Add"]
    others = (text % "Mul(x, s)", text.replace("two = {2}", "two = {3}") % "Div(x, s)")
    assert all("normalization" not in reasons(plan(header + other))["a_Add"] for other in others)
