"""Sums with a mask, and what reads them, stay float."""

import numpy as np
import pytest

from onnxqat.analysis.masks import Masks, is_mask
from onnxqat.backends import schema
from onnxqat.insertion.insert import insert_qdq
from tests.backends.planning import graph, plan, proto

LOWEST = "-3.4e38"
SUM = """g (float[1,4,4] x) => (float[1,4,4] y) <float[4] m = {0, 0, 0, MASK}> {
    t = Mul(x, x) s = Add(t, m) r = Reshape(s, n) p = Softmax(s) y = MatMul(p, t) }"""
COMPUTED = """g (float[1,4,4] x, float[1,4] keep) => (float[1,4,4] y) <float one = {1}, float low = {MASK}> {
    t = Mul(x, x) k = Sub(one, keep) m = Mul(k, low) s = Add(t, m) p = Softmax(s) y = MatMul(p, t) }"""
CHOSEN = """g (float[1,4,4] x, bool[1,4,4] keep) => (float[1,4,4] y) <float low = {MASK}> {
    t = Mul(x, x) s = Where(keep, t, low) p = Softmax(s) y = MatMul(p, t) }"""
FILLED = """g (float[1,4,4] x) => (float[1,4,4] y) <int64 up = {1}> {
    n = Shape(x) low = ConstantOfShape<value = float[1] {MASK}>(n) m = Trilu(low, up)
    t = Mul(x, x) s = Add(t, m) p = Softmax(s) y = MatMul(p, t) }"""
WRITTEN = """g (float[1,4,4] x, float[1,4,4] v) => (float[1,4,4] y) <float[1,4,4] low = {MASKS}, int64[1,1] i = {0}> {
    m = ScatterND(v, i, low) t = Mul(x, x) s = Add(t, m) p = Softmax(s) y = MatMul(p, t) }"""
WRITTEN = WRITTEN.replace("MASKS", ", ".join(["MASK"] * 16))
TEXTS = [text.replace(" r = Reshape(s, n)", "") for text in (SUM, COMPUTED, CHOSEN, FILLED, WRITTEN)]


@pytest.mark.parametrize("backend", schema.names())
@pytest.mark.parametrize("text", TEXTS)
def test_no_grid_reaches_from_numbers_to_a_mask(text: str, backend: str) -> None:
    masked = {"s", "m", "low"} & {v for v in ("s", "m", "low") if f"{v} = " in text}
    assert {e.tensor for e in plan(text.replace("MASK", LOWEST), backend).edges} & masked == set()


@pytest.mark.parametrize("fill", ["-100", "-1e4", "-65504"])
@pytest.mark.parametrize("text", TEXTS)
def test_in_front_of_a_softmax_fills_that_data_have_are_masks_too(text: str, fill: str) -> None:
    masked = {"s", "m", "low"} & {v for v in ("s", "m", "low") if f"{v} = " in text}
    assert {e.tensor for e in plan(text.replace("MASK", fill)).edges} & masked == set()
    elsewhere = text.replace("MASK", fill).replace("Softmax", "Sigmoid")
    assert "s" in {e.tensor for e in plan(elsewhere).edges}


def test_a_limit_passes_a_mask_on_or_ends_it() -> None:
    text = TEXTS[0].replace("MASK", "-1e4").replace("float[4] m", "float low = {LIMIT}, float[4] m")
    text = text.replace("p = Softmax(s)", "r = Max(s, low) p = Softmax(r)")
    assert not {"s", "r"} & {e.tensor for e in plan(text.replace("LIMIT", LOWEST), "qnn-htp").edges}
    assert "r" in {e.tensor for e in plan(text.replace("LIMIT", "-20"), "qnn-htp").edges}


def test_a_softmax_that_is_written_out_is_one() -> None:
    text = TEXTS[0].replace("MASK", "-1e4").replace("float[4] m", "int64[1] axes = {2}, float[4] m")
    written = "h = ReduceMax(s, axes) d = Sub(s, h) e = Exp(d) q = ReduceSum(e, axes) p = Div(e, q)"
    found = {e.tensor for e in plan(text.replace("p = Softmax(s)", written), "qnn-htp").edges}
    assert not {"s", "h", "d", "e", "q"} & found


def test_a_factor_in_front_of_a_softmax_is_no_mask() -> None:
    text = """g (float[1,4,4] x) => (float[1,4,4] y) <float scale = {100}> {
        t = MatMul(x, x) s = Mul(t, scale) p = Softmax(s) y = MatMul(p, x) }"""
    assert "s" in {e.tensor for e in plan(text).edges}


def test_small_constants_are_no_mask() -> None:
    assert "s" in {e.tensor for e in plan(TEXTS[0].replace("MASK", "-4")).edges}


def test_a_mask_of_minus_infinity_does_not_stop_calibration() -> None:
    model = proto(TEXTS[0].replace("MASK", LOWEST))
    mask = next(t for t in model.graph.initializer if t.name == "m")
    mask.raw_data = np.asarray([0, 0, 0, -np.inf], np.float32).tobytes()
    mask.ClearField("float_data")
    data = {"x": np.random.default_rng(0).normal(size=(4, 1, 4, 4)).astype(np.float32).reshape(4, 4, 4)[:1]}
    reasons = dict(insert_qdq(model, data=data).plan.float_nodes)
    assert "mask" in reasons["s_Add"]
    assert "mask" in reasons["p_Softmax"]


def test_which_constants_are_masks() -> None:
    assert is_mask(np.asarray([0, -np.inf], np.float32))
    assert is_mask(np.asarray([0, 1e9], np.float32))
    assert not is_mask(np.asarray([-1e8, 1e8], np.float32))
    assert not is_mask(np.asarray([], np.float32))


def test_a_softmax_in_between_ends_it() -> None:
    found = graph(TEXTS[0].replace("MASK", LOWEST))
    values = {v.name: v for node in found for v in node.outputs}
    finder = Masks()
    assert not finder.carries(values["y"])
    assert finder.carries(values["s"])
    assert not finder.carries(values["p"])


def test_each_value_of_a_chain_is_visited_once(monkeypatch: pytest.MonkeyPatch) -> None:
    visited, sources = list[str](), Masks._sources
    monkeypatch.setattr(
        Masks, "_sources", lambda self, value: (visited.append(str(value.name)), sources(self, value))[1]
    )
    for start in ("Relu(x)", "Add(x, m)"):
        body = " ".join(f"a{i + 1} = Add(a{i}, x)" for i in range(50))
        found = graph(f"g (float[2] x) => (float[2] a50) <float[2] m = {{0, -1e30}}> {{ a0 = {start} {body} }}")
        values = [v for node in found for v in node.outputs]
        visited.clear()
        finder = Masks()
        assert {finder.carries(value) for value in values} == {"m)" in start}
        assert len(visited) == len(set(visited)) <= len(values) + 1
