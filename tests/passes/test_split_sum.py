"""split-sum: a Sum of several tensors as Adds of two."""

import numpy as np
import onnx
import pytest

import onnxqat
from onnxqat.backends import schema
from onnxqat.graph import io, qdq
from onnxqat.passes.split_sum import SplitSum
from onnxqat.runtime.session import Session
from tests.backends.planning import edges, plan, weight
from tests.bridge.integer import networks
from tests.passes.checks import check_pass

HEADER = '<ir_version: 8, opset_import: ["" : 17]> '
CELL = """
<ir_version: 8, opset_import: ["" : 17]>
cell (float[N, 3, 8, 8] x) => (float[N, 4, 8, 8] y)
<float[4, 3, 1, 1] w1, float[4, 3, 3, 3] w2, float[4, 3, 5, 5] w3, float[4, 4, 1, 1] w4>
{
    a = Conv (x, w1)
    b = Conv <pads = [1, 1, 1, 1]> (x, w2)
    c = Conv <pads = [2, 2, 2, 2]> (x, w3)
    s = Sum (a, b, c)
    y = Conv (s, w4)
}"""


def test_a_chain_from_the_first_operand_on() -> None:
    check_pass(
        SplitSum(),
        HEADER + "g (float[2,3] a, float[3] b, float[2,1] c) => (float[2,3] y) { y = Sum(a, b, c) }",
        HEADER
        + "g (float[2,3] a, float[3] b, float[2,1] c) => (float[2,3] y) { y_sum_1 = Add(a, b) y = Add(y_sum_1, c) }",
        atol=0.0,
    )


def test_a_sum_of_one() -> None:
    check_pass(
        SplitSum(),
        HEADER + "g (float[2,3] a) => (float[2,3] y) { y = Sum(a) }",
        HEADER + "g (float[2,3] a) => (float[2,3] y) { y = Identity(a) }",
        atol=0.0,
    )


@pytest.mark.parametrize("backend", [name for name in schema.names() if "Add" in schema.load(name).ops])
def test_every_table_that_adds_two_adds_several(backend: str) -> None:
    text = f"""g (float[1,2,4,4] x) => (float[1,2,4,4] y) <float[2,2,1,1] w = {weight(2, 2, 1, 1)}> {{
        a = Conv(x, w) b = Conv(a, w) s = Sum(x, a, b) y = Conv(s, w) }}"""
    written = f"""g (float[1,2,4,4] x) => (float[1,2,4,4] y) <float[2,2,1,1] w = {weight(2, 2, 1, 1)}> {{
        a = Conv(x, w) b = Conv(a, w) s_sum_1 = Add(x, a) s = Add(s_sum_1, b) y = Conv(s, w) }}"""
    assert set(edges(plan(text, backend))) == set(edges(plan(written, backend)))


def test_an_excluded_sum_stays() -> None:
    text = f"""g (float[1,2,4,4] x) => (float[1,2,4,4] y) <float[2,2,1,1] w = {weight(2, 2, 1, 1)}> {{
        a = Conv(x, w) s = Sum(x, a, a) y = Conv(s, w) }}"""
    assert "s_sum_1" not in edges(plan(text, "onnxruntime-cpu", exclude=("s",)))


def test_a_cell_runs_in_integers() -> None:
    x = np.random.default_rng(0).standard_normal((12, 3, 8, 8)).astype(np.float32)
    model = networks.quantized(networks.with_weights(CELL), x)
    assert isinstance(model, onnx.ModelProto)
    assert {"s", "s_sum_1"} <= {q.tensor for q in qdq.quantizers(io.load(model))}
    integers = onnxqat.to_integer(model)
    assert [kernel for _, kernel in integers.kernels].count("Sum") == 2
    assert integers.float_operators() == []
    found = integers.run({"x": x}).outputs["y"]
    np.testing.assert_array_equal(found, networks.session(model, x)[0])
    close = Session(io.load(networks.with_weights(CELL)), optimize=True).run({"x": x})["y"]
    assert np.corrcoef(found.ravel(), close.ravel())[0, 1] > 0.999
