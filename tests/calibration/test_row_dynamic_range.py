"""Linear layers in front of a normalization whose rows no single scale fits."""

import numpy as np
import onnx
import pytest

from onnxqat.calibration.row_dynamic_range import RowSizes
from onnxqat.insertion.insert import insert_qdq
from onnxqat.placement.table_overrides import Overrides
from tests.backends.planning import weight
from tests.passes.checks import ort_run

TEXT = f"""<ir_version: 8, opset_import: ["" : 17]>
g (float[N,4] x) => (float[N,4] y) <float[4,4] w = {weight(4, 4)}, float[4] bias = {{0.1, 0.2, 0.3, 0.4}}, float e = {{0.00001}}> {{
    ["first"] h = MatMul(x, w) {{bias}} m = ReduceMean<axes = [-1]>({{h}}) d = Sub({{h}}, m) q = Mul(d, d)
    v = ReduceMean<axes = [-1]>(q) a = Add(v, e) s = Sqrt(a) n = Div(d, s) ["last"] y = MatMul(n, w) }}"""


def model(bias: bool) -> onnx.ModelProto:
    text = TEXT.replace("{bias}", "b = Add(h, bias)" if bias else "").replace("{h}", "b" if bias else "h")
    return onnx.parser.parse_model(text.replace("{{", "{").replace("}}", "}"))


def rows(*sizes: float) -> np.ndarray:
    values = np.random.default_rng(0).normal(size=(len(sizes), 4))
    return (values / np.abs(values).max(axis=1, keepdims=True) * np.asarray(sizes)[:, None]).astype(np.float32)


def test_share_of_small_rows() -> None:
    found = RowSizes()
    assert found.small_share(8) == 0
    found.update(rows(100, 3, 2, 1))
    found.update(rows(0, 60))
    found.update(np.zeros((0, 4), np.float32))
    assert (
        found.small_share(8) == 1 / 5
    )  # the row of zeros does not count; 100 lies below 2 ** 7, and 1 below 2 ** 2 / 2
    assert found.small_share(16) == 0
    assert found.small_share(4) == found.small_share(8)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("backend", ["onnxruntime-cpu", "tensorrt"])
def test_such_a_layer_stays_float(bias: bool, backend: str) -> None:
    data = {"x": rows(100, *np.linspace(0.01, 1, 20))}
    result = insert_qdq(model(bias), backend, data=data)
    assert "normalization behind it" in dict(result.plan.float_nodes)["first"]
    assert [r.nodes for r in result.remarks if "normalization behind it" in r.message] == [("first",)]
    exact, near = ort_run(model(bias), data)["y"], ort_run(result.model, data)["y"]
    assert np.mean((near - exact) ** 2) / np.mean(exact**2) < 1e-2


@pytest.mark.parametrize("sizes", [tuple(np.linspace(4, 100, 21)), (100, 0.001, *np.linspace(20, 90, 40))])
def test_alike_rows_and_few_small_ones_do_not_matter(sizes: tuple[float, ...]) -> None:
    result = insert_qdq(model(False), data={"x": rows(*sizes)})
    assert "first" not in dict(result.plan.float_nodes)


@pytest.mark.parametrize(("small", "stays_float"), [(4, False), (6, True)])
def test_more_than_a_twentieth_of_small_rows_is_no_accident(small: int, stays_float: bool) -> None:
    """Fewer are padding, or outliers that training of the float model has not cared about either."""
    sizes = (*[0.001] * small, *np.linspace(50, 100, 100 - small))
    result = insert_qdq(model(False), data={"x": rows(*sizes)}, guard=False)
    assert ("first" in dict(result.plan.float_nodes)) == stays_float


def test_16_bits_hold_both() -> None:
    data = {"x": rows(100, *np.linspace(0.1, 1, 20))}
    result = insert_qdq(model(False), data=data, overrides=Overrides(activation_bits=16))
    assert "first" not in dict(result.plan.float_nodes)
