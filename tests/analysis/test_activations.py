"""Activations that are written out stay float around a curve that has no kernel."""

import pytest

from tests.backends.planning import edges, plan, weight

HEAD = """g (float[2,4,4] x) => (float[2,4,4] y) <float[4,4] w = NUMBERS, float one = {1}, float half = {0.5},
    float root = {1.41421354}, float third = {3}, float k = {0.044715}>
    { h = MatMul(x, w) %s y = MatMul(a, w) }""".replace("NUMBERS", weight(4, 4))

GELU = "d = Div(h, root) e = Erf(d) s = Add(e, one) p = Mul(h, s) a = Mul(p, half)"
BY_TANH = "c = Pow(h, third) m = Mul(c, k) i = Add(h, m) t = Tanh(i) s = Add(t, one) p = Mul(h, s) a = Mul(p, half)"
MISH = "f = Softplus(h) t = Tanh(f) a = Mul(h, t)"


@pytest.mark.parametrize("backend", ["onnxruntime-cpu", "openvino-cpu", "qnn-htp"])
@pytest.mark.parametrize("body", [GELU, BY_TANH, MISH])
def test_only_what_comes_out_is_on_a_grid(body: str, backend: str) -> None:
    found = set(edges(plan(HEAD % body, backend)))
    assert found - {"h"} == {"x", "w", "a"} | ({"y"} if backend == "qnn-htp" else set())
    assert ("h" in found) == (backend == "qnn-htp")  # a kernel that gives float needs no pair


def test_curves_with_a_kernel_stay_on_their_grids() -> None:
    found = set(edges(plan(HEAD % "t = Tanh(h) a = Mul(h, t)", "qnn-htp")))
    assert {"h", "t", "a"} <= found


def test_a_silu_of_sigmoid_has_kernels() -> None:
    assert {"h", "t", "a"} <= set(edges(plan(HEAD % "t = Sigmoid(h) a = Mul(h, t)")))


def test_functions_of_two_tensors_are_no_activation() -> None:
    found = set(edges(plan(HEAD % "g = MatMul(x, w) t = Tanh(g) p = Mul(h, t) a = Add(p, g)")))
    assert {"h", "p", "t"} <= found
