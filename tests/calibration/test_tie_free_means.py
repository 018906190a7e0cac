"""``--exact`` for integer kernels: means lie on grids on which no value is half-way between two codes."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import pytest

import onnxqat
from onnxqat.calibration.exact import tie_free_means
from onnxqat.graph import io, qdq
from onnxqat.placement.table_overrides import Overrides
from onnxqat.types import Placement, QParams, QType, QuantPlan, TieFreeMean
from tests.backends.planning import proto, weight

STEP = 1 + 2.0**-11
PYRAMID = f"""<ir_version: 8, opset_import: ["" : 13]> g (float[1,3,8,8] x) => (float[1,4,4,4] y) <
    float[4,3,1,1] w = {weight(4, 3, 1, 1)}, float[4,3,1,1] v = {weight(4, 3, 1, 1)},
    float[4,4,1,1] k = {weight(4, 4, 1, 1)}, int64[4] large = {{1,4,16,16}}, int64[4] small = {{1,4,4,4}}> {{
    a = Conv(x, w) u = Resize<mode = "linear">(a, , , large) b = Conv<pads = [4,4,4,4]>(x, v) s = Add(b, u)
    d = Resize<mode = "linear">(s, , , small) p = AveragePool<kernel_shape = [2,2], pads = [0,0,1,1]>(d)
    n = Resize<mode = "nearest">(p, , , large) m = MaxPool<kernel_shape = [4,4], strides = [4,4]>(n) y = Conv(m, k) }}"""


def scales(backend: str, *, exact: bool) -> dict[str, float]:
    x = np.random.default_rng(1).standard_normal((4, 3, 8, 8)).astype(np.float32)
    overrides = Overrides(exact=exact)
    made = onnxqat.insert_qdq(proto(PYRAMID), backend, data={"x": x}, overrides=overrides).model
    return {q.tensor: float(q.qparams.scale) for q in qdq.quantizers(io.load(made)) if q.qparams.scale.size == 1}


def test_a_mean_is_a_little_coarser_than_its_input() -> None:
    found = scales("qnn-htp", exact=True)
    for source, mean, times in (("a", "u", 1), ("s", "d", 1), ("d", "p", 2)):
        ratio = found[mean] / found[source] / (1 + times * 2.0**-11) * (1 + (times - 1) * 2.0**-11)
        assert np.log2(ratio) == np.rint(np.log2(ratio))
        assert ratio <= 1  # a coarser grid has ties half-way that need one bit more
    assert {np.frexp(found[t])[0] for t in ("x", "a", "b", "s")} == {0.5}
    assert found["n"] == found["p"]  # nothing is interpolated


@pytest.mark.parametrize(
    ("attributes", "apart"),
    [
        ("kernel_shape = [3,3]", False),
        ("kernel_shape = [2,3]", True),
        ("kernel_shape = [3,3], pads = [1,1,1,1]", True),
        ("kernel_shape = [3,3], pads = [1,1,1,1], count_include_pad = 1", False),
        ('kernel_shape = [3,3], auto_pad = "SAME_UPPER"', True),
    ],
)
def test_a_mean_of_an_odd_number_of_values_keeps_the_grid(attributes: str, apart: bool) -> None:
    text = f"g (float[1,4,9,9] x) => (float[1,4,N,M] y) {{ a = Relu(x) p = AveragePool<{attributes}>(a) y = Relu(p) }}"
    x = np.random.default_rng(1).standard_normal((1, 4, 9, 9)).astype(np.float32)
    made = onnxqat.insert_qdq(proto(text), "qnn-htp", data={"x": x}, overrides=Overrides(exact=True)).model
    found = {q.tensor: float(q.qparams.scale) for q in qdq.quantizers(io.load(made))}
    assert (np.frexp(found["p"] / found["a"])[0] != 0.5) == apart


def test_no_mean_lies_between_two_codes() -> None:
    """So rounding ties up, as HTP does, and to even are the same; on the input's own grid they are not."""
    codes = np.arange(-128 * 16, 128 * 16) / 16
    for scale, equal in ((1.0, False), (STEP, True)):
        steps = codes / scale
        assert np.array_equal(np.floor(steps + 0.5), np.rint(steps)) == equal


def test_without_odd_sums_there_is_nothing_to_set_apart() -> None:
    found = scales("qnn-htp", exact=False)
    assert (found["u"], found["d"]) == (found["a"], found["s"])
    short = scales("onnxruntime-cpu", exact=True)
    assert {np.frexp(s)[0] for tensor, s in short.items() if tensor in "abusdpnmx"} == {0.5}


def placement(tensor: str, scale: float, **more: object) -> Placement:
    qparams = QParams(np.float32(scale), np.int64(0), QType("uint8", 0, 255), scale_bits=1)
    return Placement(tensor, qparams, "rule", **more)  # type: ignore[arg-type]


def test_prescribed_grids_and_rings_stay() -> None:
    chain = (TieFreeMean("n1", ("a",), "b"), TieFreeMean("n2", ("b",), "c"), TieFreeMean("n3", ("c",), "d"))
    made = [placement("a", 1), placement("b", 1), placement("c", 1, prescribed=True), placement("d", 1)]
    found = tie_free_means.offset_scales(QuantPlan("t", (), tie_free_means=chain), made)
    assert [float(p.qparams.scale) for p in found] == [1, STEP, 1, STEP]
    assert [p.qparams.scale_bits for p in found] == [1, 12, 1, 12]
    ring = (TieFreeMean("n1", ("a", "a"), "b"), TieFreeMean("n2", ("b", "b"), "a"))
    again = tie_free_means.offset_scales(QuantPlan("t", (), tie_free_means=ring * 50), made[:2])
    assert all(1 < p.qparams.scale < 1.05 for p in again)
    tied = [placement("a", 1, group="a"), placement("b", 1, group="a")]
    assert tie_free_means.offset_scales(QuantPlan("t", (), tie_free_means=chain[:1]), tied) == tied


def test_the_model_is_valid() -> None:
    x = np.zeros((1, 3, 8, 8), np.float32)
    made = onnxqat.insert_qdq(proto(PYRAMID), "qnn-htp", data={"x": x}, overrides=Overrides(exact=True)).model
    onnx.checker.check_model(made, full_check=True)


def test_factors_have_their_zero_point_in_the_middle() -> None:
    """Of a constant and of a Sigmoid's result it stays: one of two is enough."""
    text = """g (float[1,4,8,8] x) => (float[1,4,8,8] y) <float[1,1,1,8] k = {1, 2, 3, 4, 1, 2, 3, 4}> {
        a = Relu(x) s = Sigmoid(x) p = Mul(a, s) q = Mul(p, k) r = Relu(q) y = Add(r, x) }"""
    x = np.random.default_rng(1).standard_normal((1, 4, 8, 8)).astype(np.float32)
    made = onnxqat.insert_qdq(proto(text), "qnn-htp", data={"x": x}, overrides=Overrides(exact=True)).model
    found = {q.tensor: q.qparams for q in qdq.quantizers(io.load(made))}
    assert {t: int(found[t].zero_point) for t in "aspk"} == {"a": 128, "s": 0, "p": 128, "k": 0}
    for factors, product, times in (("as", "p", 1), ("pk", "q", 2)):
        ratio = found[product].scale / np.prod([found[t].scale for t in factors], dtype=np.float64)
        steps = (1 + times * 2.0**-11) / (1 + (times - 1) * 2.0**-11)
        assert np.log2(ratio / steps) == np.rint(np.log2(ratio / steps))
        covered = float((255 - found[product].zero_point) * found[product].scale)
        assert covered >= 0.99 * float(np.abs(x).max())


@pytest.mark.parametrize(("zero_point", "times"), [(128, 1), (127, 1), (126, 2), (90, 2), (0, 2), (255, 2)])
def test_centered_grids_cover_as_much(zero_point: int, times: int) -> None:
    given = placement("a", 0.5)
    given = dataclasses.replace(given, qparams=dataclasses.replace(given.qparams, zero_point=np.int64(zero_point)))
    plan = QuantPlan("t", (), tie_free_means=(TieFreeMean("n", ("a", "b"), "c"),))
    (found,) = tie_free_means.center(plan, [given])
    assert (int(found.qparams.zero_point), float(found.qparams.scale)) == (128, 0.5 * times)
    (alone,) = tie_free_means.center(QuantPlan("t", (), tie_free_means=(TieFreeMean("n", ("a",), "c"),)), [given])
    assert alone is given
