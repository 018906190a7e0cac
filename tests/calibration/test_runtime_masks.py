"""Masks that come with the data stay float, and so does what reads numbers through them."""

import numpy as np
import pytest

from onnxqat.backends import schema
from onnxqat.calibration.runtime_masks import hides
from onnxqat.errors import DataError
from onnxqat.insertion.insert import InsertResult, insert_qdq
from tests.backends.planning import proto
from tests.repetitions import pairs

ADDED = """g (float[1,4,4] x, float[1,1,4] m) => (float[1,4,4] y) {
    t = Mul(x, x) s = Add(t, m) r = Identity(s) p = Softmax(r) y = MatMul(p, t) }"""
COMPUTED = """g (float[1,4,4] x, float[1,1,4] m) => (float[1,4,4] y) <float low = {-10000}, float one = {1}> {
    t = Mul(x, x) k = Sub(one, m) f = Mul(k, low) s = Add(t, f) p = Softmax(s) y = MatMul(p, t) }"""
NUMBERS = np.random.default_rng(0).normal(size=(1, 4, 4)).astype(np.float32)


def inserted(text: str, mask: list[float], backend: str = "onnxruntime-cpu") -> InsertResult:
    return insert_qdq(proto(text), backend, data=[{"x": NUMBERS, "m": np.float32([[mask]])}])


@pytest.mark.parametrize(("low", "backend"), pairs([-np.inf, np.finfo(np.float32).min, -1e5], schema.names()))
def test_no_grid_reaches_from_numbers_to_a_mask_that_is_given(low: float, backend: str) -> None:
    result = inserted(ADDED, [0, 0, 0, low], backend)
    assert {e.tensor for e in result.plan.edges} & {"m", "s", "r"} == set()


def test_nor_to_one_that_is_computed() -> None:
    result = inserted(COMPUTED, [1, 1, 1, 0])
    assert {e.tensor for e in result.plan.edges} & {"f", "s"} == set()
    assert "mask" in dict(result.plan.float_nodes)["p_Softmax"]


@pytest.mark.parametrize("bias", [[0, -1, -2, -3], [0, 0, 0, -0.01], [0, 0, 0, -100]])
def test_a_bias_is_no_mask(bias: list[float]) -> None:
    assert "r" in {e.tensor for e in inserted(ADDED, bias).plan.edges}


def test_what_is_a_mask_of_minus_infinity() -> None:
    assert hides(np.float32([0, -np.inf]))
    assert hides(np.float32([-np.inf]))
    assert not hides(np.float32([0, 1, -np.inf]))
    assert not hides(np.float32([0, np.inf]))
    assert not hides(np.float32([0, np.nan, -np.inf]))
    assert not hides(np.float32([0, 0]))


def test_a_broken_constant_is_named() -> None:
    text = "g (float[2,2] x) => (float[2,2] y) <float[2,2] w = {1, 2, 3, 4}> { t = MatMul(x, w) y = MatMul(t, t) }"
    model = proto(text)
    model.graph.initializer[0].float_data[1] = np.nan
    with pytest.raises(DataError, match="and so has constant 'w'"):
        insert_qdq(model, data=[{"x": np.ones((2, 2), np.float32)}])


LAYERED = """g (float[1,4,4] x, float[1,1,4] m) => (float[1,4,4] y)
    <float mean = {1}, float[4,4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}> {
    c = Sub(x, mean) t = MatMul(c, w) s = Add(t, m) y = Softmax(s) }"""


@pytest.mark.parametrize("sign", [1, -1])
def test_an_input_that_a_layer_multiplies_is_no_mask(sign: float) -> None:
    damaged = NUMBERS.copy()
    damaged[0, 1, 2] = sign * 1e30
    mask = np.float32([[[0, 0, 0, -1e30]]])
    with pytest.raises(DataError, match=r"batch 1 of .*input 'x' reaches 1e\+30 in sample 0"):
        insert_qdq(proto(LAYERED), data=[{"x": NUMBERS, "m": mask}, {"x": damaged, "m": mask}])
    assert insert_qdq(proto(LAYERED), data=[{"x": NUMBERS, "m": mask}]).plan.edges
