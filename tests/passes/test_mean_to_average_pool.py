"""mean-to-average-pool: a mean over the whole map as the pool that integer kernels have."""

import numpy as np
import pytest
from onnx import parser

import onnxqat
from onnxqat.backends import schema
from onnxqat.passes.mean_to_average_pool import MeanToAveragePool
from tests.backends.planning import edges, plan, weight
from tests.bridge.integer import networks
from tests.passes.checks import check_pass

HEADER = '<ir_version: 8, opset_import: ["" : {}]> '
OLD, NEW = HEADER.format(17), HEADER.format(18)
SQUEEZE = f"""g (float[N,2,4,4] x) => (float[N,2,4,4] y)
<float[2,2,1,1] w = {weight(2, 2, 1, 1)}, float[2,2,1,1] v = {weight(2, 2, 1, 1)}, int64[2] axes = {{-1, -2}}> {{
    c = Conv(x, w) m = ReduceMean <keepdims = 1> (c, axes) s = Conv(m, v) k = HardSigmoid(s) y = Mul(c, k) }}"""


@pytest.mark.parametrize("axes", ["[2, 3]", "[-1, -2]", "[3, -2]"])
def test_kept_axes(axes: str) -> None:
    check_pass(
        MeanToAveragePool(),
        OLD + f"g (float[N,3,5,7] x) => (float[N,3,1,1] y) {{ y = ReduceMean <axes = {axes}> (x) }}",
        OLD + "g (float[N,3,5,7] x) => (float[N,3,1,1] y) { y = GlobalAveragePool(x) }",
        atol=1e-6,
        inside_function="left",  # no shapes there
    )


def test_dropped_axes_that_are_an_input() -> None:
    check_pass(
        MeanToAveragePool(),
        NEW + "g (float[2,3,H,W] x) => (float[2,3] y) <int64[2] a = {2, 3}> { y = ReduceMean <keepdims = 0> (x, a) }",
        NEW
        + "g (float[2,3,H,W] x) => (float[2,3] y) <int64[2] a = {2, 3}>"
        + "{ y_pool = GlobalAveragePool(x) y = Flatten <axis = 1> (y_pool) }",
        atol=1e-6,
        inside_function="left",
    )


@pytest.mark.parametrize(
    "graph",
    [
        "g (float[2,3,5,7] x) => (float[2,3,1,7] y) { y = ReduceMean <axes = [2]> (x) }",
        "g (float[2,3,5,7] x) => (float[2,1,1,1] y) { y = ReduceMean <axes = [1, 2, 3]> (x) }",
        "g (float[2,3,5,7] x) => (float[1,1,1,1] y) { y = ReduceMean (x) }",
        "g (float[2,5,7] x) => (float[2,1,1] y) { y = ReduceMean <axes = [1, 2]> (x) }",
        "g (float[2,3,5,7] x) => (float[2,3,5,7] y) { m = ReduceMean <axes = [2, 3]> (x) d = Sub(x, m) q = Mul(d, d)"
        " v = ReduceMean <axes = [2, 3]> (q) s = Sqrt(v) y = Div(d, s) }",
    ],
    ids=["one axis", "channels too", "all", "another rank", "a normalization"],
)
def test_other_means_stay(graph: str) -> None:
    check_pass(MeanToAveragePool(), OLD + graph, None)


WITHOUT_MEANS = [
    name
    for name in schema.names()
    if "GlobalAveragePool" in schema.load(name).ops and "ReduceMean" not in schema.load(name).ops
]


@pytest.mark.parametrize("backend", WITHOUT_MEANS)
def test_pairs_are_those_of_the_pool(backend: str) -> None:
    pooled = SQUEEZE.replace("ReduceMean <keepdims = 1> (c, axes)", "GlobalAveragePool(c)")
    found = edges(plan(SQUEEZE, backend))
    assert set(found) == set(edges(plan(pooled, backend)))
    assert {"c", "m"} <= set(found)


def test_an_excluded_mean_stays() -> None:
    assert "m" in edges(plan(SQUEEZE, "onnxruntime-cpu"))
    assert "m" not in edges(plan(SQUEEZE.replace("Conv(m, v)", "Neg(m)"), "onnxruntime-cpu", exclude=("m",)))


def test_squeeze_and_excitation_in_integers() -> None:
    x = np.random.default_rng(0).standard_normal((12, 2, 4, 4)).astype(np.float32)
    model = networks.quantized(parser.parse_model(NEW + SQUEEZE), x)
    integers = onnxqat.to_integer(model)
    assert "GlobalAverage" in [kernel for _, kernel in integers.kernels]
    np.testing.assert_array_equal(integers.run({"x": x}).outputs["y"], networks.session(model, x)[0])
