"""smoothquant: the function is kept, and the activation's channels have the sizes of the formula."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxqat.passes.smoothquant import SmoothQuant
from tests.passes.checks import (
    body,
    check_pass,
    in_function,
    in_if,
    operators,
    ort_run,
    parse,
    random_feeds,
    run_checked,
)

GAMMA = np.float32([100, 1, 0.5, 2])
SIZES = {"n": 3 * GAMMA}
WEIGHT = "float[4,2] k = {0.01, 0.02, 1, -2, 3, 1, 0.5, 0.1}"
LARGEST = np.float32([0.02, 2, 3, 0.5])
NORM = "n = LayerNormalization (x, gamma, beta)"
ROWS = "float[4] gamma = {100, 1, 0.5, 2}, float[4] beta = {1, 2, 0, -1}"
WRITTEN_OUT = """m = ReduceMean <axes = [-1]> (x) d = Sub(x, m) q = Mul(d, d) v = ReduceMean <axes = [-1]> (q) e = Add(v, small)
    r = Sqrt(e) c = Div(d, r) s = Mul(gamma, c) n = Add(s, beta)"""


def model(made: str, read: str, constants: str = ROWS, *, outputs: str = "float[N,3,2] y") -> str:
    return f"g (float[N,3,4] x) => ({outputs}) <{constants}, {WEIGHT}> {{ {made} {read} }}"


def weights(proto: onnx.ModelProto, name: str = "k") -> np.ndarray:
    return next(numpy_helper.to_array(i) for i in proto.graph.initializer if i.name == name)


@pytest.mark.parametrize(
    ("made", "read", "constants", "outputs"),
    [
        (NORM, "y = MatMul(n, k)", ROWS, "float[N,3,2] y"),
        (
            NORM,
            "y = MatMul(n, k) z = MatMul(n, l)",
            ROWS + ", float[4,1] l = {0.01, 1, 2, 0.3}",
            "float[N,3,2] y, float[N,3,1] z",
        ),
        (WRITTEN_OUT, "y = MatMul(n, k)", ROWS + ", float small = {0.00001}", "float[N,3,2] y"),
        ("n = Mul(x, gamma)", "y = MatMul(n, k)", ROWS, "float[N,3,2] y"),
        (
            "p = MatMul(x, w) h = Add(p, beta) n = Relu(h)",
            "y = MatMul(n, k)",
            ROWS + ", float[4,4] w = {100,1,1,1, 9,1,1,1, 1,1,1,2, 1,1,2,1}",
            "float[N,3,2] y",
        ),
    ],
    ids=["layer norm", "two products", "written out", "a product by constants", "a layer"],
)
def test_factors_of_the_paper(made: str, read: str, constants: str, outputs: str) -> None:
    before = parse(model(made, read, constants, outputs=outputs))
    result = run_checked(SmoothQuant(SIZES), before, 1e-3)  # of values of some hundred
    factors = weights(result.model)[:, 1] / weights(before)[:, 1]
    np.testing.assert_allclose(factors, np.sqrt(SIZES["n"] / LARGEST), rtol=1e-5)
    feeds = random_feeds(before, 0)
    old, new = (_inner(proto, feeds) for proto in (before, result.model))
    np.testing.assert_allclose(new * factors, old, rtol=1e-4, atol=1e-5)


def _inner(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> np.ndarray:
    shown = onnx.ModelProto()
    shown.CopyFrom(proto)
    shown.graph.output.append(onnx.ValueInfoProto(name="n"))
    return ort_run(shown, feeds)["n"]


@pytest.mark.parametrize("alpha", [0.0, 0.7, 1.0])
def test_the_exponent(alpha: float) -> None:
    before = parse(model(NORM, "y = MatMul(n, k)"))
    result = run_checked(SmoothQuant(SIZES, alpha=alpha), before, 1e-3)
    factors = weights(result.model)[:, 1] / weights(before)[:, 1]
    np.testing.assert_allclose(factors, SIZES["n"] ** alpha / LARGEST ** (1 - alpha), rtol=1e-5)


def test_rows_in_front_of_a_gemm() -> None:
    """The form that matmul-bias-to-gemm leaves: one Reshape for all layers that read the tensor."""
    constants = ROWS + ", int64[2] rows = {-1, 4}, float[2] b = {1, 2}"
    read = "f = Reshape(n, rows) y = Gemm(f, k, b) t = MatMul(n, k2)"
    text = model(NORM, read, constants + ", float[4,1] k2 = {0.01, 1, 2, 0.3}", outputs="float[M,2] y, float[N,3,1] t")
    assert run_checked(SmoothQuant(SIZES), parse(text), 1e-3).changed


def test_a_norm_of_onnxruntime() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[N,3,4] x, float[N,3,4] o) => (float[N,3,2] y)
        <float[4] gamma = {100, 1, 0.5, 2}, float[4] beta = {1, 2, 0, -1}, WEIGHT> {
        n = com.microsoft.SkipLayerNormalization(x, o, gamma, beta) y = MatMul(n, k) }""".replace("WEIGHT", WEIGHT)
    before = parse(text)
    result = SmoothQuant(SIZES).run(before)
    assert result.changed
    feeds = random_feeds(before, 0)
    np.testing.assert_allclose(ort_run(result.model, feeds)["y"], ort_run(before, feeds)["y"], atol=1e-3)


@pytest.mark.parametrize(
    ("made", "read", "outputs"),
    [
        (NORM, "y = MatMul(n, k) t = Add(n, x)", "float[N,3,2] y, float[N,3,4] t"),
        (NORM, "y = MatMul(n, k)", "float[N,3,2] y, float[N,3,4] n"),
        ("n = Softmax(x)", "y = MatMul(n, k)", "float[N,3,2] y"),
        (NORM, "t = Transpose <perm = [0, 2, 1]> (n) y = MatMul(n, k)", "float[N,3,2] y, float[N,4,3] t"),
    ],
    ids=["residual", "graph output", "no constant", "read otherwise"],
)
def test_left_alone(made: str, read: str, outputs: str) -> None:
    check_pass(SmoothQuant(SIZES), model(made, read, outputs=outputs), None)


def test_without_ranges_nothing_is_done() -> None:
    text = model(NORM, "y = MatMul(n, k)")
    for step in (SmoothQuant({}), SmoothQuant(SIZES, tensors=["other"])):
        assert not step.run(parse(text)).changed


def test_inside_bodies_too() -> None:
    before = parse(model(NORM, "y = MatMul(n, k)"))
    for wrapped, names in ((in_function(before), ["n"]), (in_if(before), ["then_n", "else_n"])):
        result = run_checked(SmoothQuant(dict.fromkeys(names, SIZES["n"])), wrapped, 1e-3)
        assert result.changed
        assert operators(body(result.model)) == ["LayerNormalization", "MatMul"]
