"""Attention and elementwise operators for OpenVINO: types of products, bare tensors, constants."""

import itertools

import numpy as np
import onnx
import pytest

from onnxqat.insertion.insert import insert_qdq
from tests.backends.planning import edges, plan, proto, reasons, spec, weight

BACKEND = "openvino-cpu"
ATTENTION = f"""g (float[1,8,4] x) => (float[1,8,4] y) <float[4,12] w = {weight(4, 12)}, float[4,4] o = {weight(4, 4)},
    float c = {{0.5}}> {{ h = MatMul(x, w) q, k, v = Split<axis = 2, num_outputs = 3>(h) s = Mul(q, c)
    t = Transpose<perm = [0, 2, 1]>(k) m = MatMul(s, t) d = Mul(m, c) p = Softmax<axis = -1>(d) a = MatMul(p, v)
    y = MatMul(a, o) }}"""
CONVOLUTIONS = f"""g (float[1,4,8,8] x) => (float[1,4,6,6] y) <float[4,4,1,1] w = {weight(4, 4, 1, 1)},
    float[4,4,3,3] v = {weight(4, 4, 3, 3)}> {{ a = Conv(x, w) r = Relu(a) b = Conv(r, w) s = Add(r, b) t = Relu(s)
    y = Conv(t, v) }}"""


def test_products_of_activations_get_zero_point_0() -> None:
    found = plan(ATTENTION, BACKEND)
    types = {name: (spec(found, name).qtype.storage, spec(found, name).symmetric) for name in ("x", "h", "s", "p", "a")}
    assert types == {
        "x": ("uint8", False),
        "h": ("int8", True),  # read by a product as v, and by what takes any grid
        "s": ("int8", True),
        "p": ("uint8", False),  # never negative: its zero point is 0
        "a": ("uint8", False),
    }


def test_scores_of_an_attention_carry_no_pair() -> None:
    found = plan(ATTENTION, BACKEND)
    assert not {"m", "d", "c", "q", "k", "v"} & set(edges(found))
    assert "fuses it" in next(why for node, why in reasons(found).items() if node.startswith("d"))


def test_a_rotary_embedding_carries_no_pairs() -> None:
    body = """g (float[1,8,4] x, float[1,4,8] k) => (float[1,8,8] y) <float[4,4] w = WEIGHT, float[8,4] cos = COS, float[8,4] sin = COS,
        int64[1] zero = {0}, int64[1] two = {2}, int64[1] four = {4}> {
        h = MatMul(x, w) a = Slice(h, zero, two, two) b = Slice(h, two, four, two) n = Neg(b) r = Concat<axis = 2>(n, a)
        e = Mul(h, cos) f = Mul(r, sin) q = Add(e, f) y = MatMul(q, k) }"""
    found = plan(body.replace("WEIGHT", weight(4, 4)).replace("COS", weight(8, 4)), BACKEND)
    assert set(edges(found)) == {"x", "w", "q", "k"}
    assert spec(found, "q").qtype.storage == spec(found, "k").qtype.storage == "int8"


def test_sums_of_convolutions_keep_their_pairs() -> None:
    found = plan(CONVOLUTIONS, BACKEND)
    assert {"x", "r", "t", "w", "v"} <= set(edges(found))
    assert {spec(found, name).qtype.storage for name in ("x", "r", "t")} == {"uint8"}


@pytest.mark.parametrize("shape", ["float[8,4]", "float[1,8,4]", "float[4]"])
def test_an_added_constant_carries_no_pair(shape: str) -> None:
    sizes = [int(n) for n in shape[6:-1].split(",")]
    body = f"""g (float[1,8,4] x) => (float[1,8,4] y) <float[4,4] w = {weight(4, 4)}, {shape} c = {weight(*sizes)}>
        {{ h = MatMul(x, w) s = Add(c, h) y = MatMul(s, w) }}"""
    assert "c" not in edges(plan(body, BACKEND))


def test_a_computed_constant_counts_as_one() -> None:
    body = f"""g (float[1,8,4] x) => (float[1,8,4] y) <float[4,4] w = {weight(4, 4)}, float[16] all = {weight(16)}, int64[2] sizes = {{4, 12}}>
        {{ b, rest = Split<axis = 0>(all, sizes) h = MatMul(x, w) s = Add(h, b) y = MatMul(s, w) }}"""
    assert "b" not in edges(plan(body, BACKEND))


@pytest.mark.parametrize("gathered", [False, True])
def test_openvino_takes_what_is_inserted(gathered: bool) -> None:
    openvino = pytest.importorskip("openvino")
    body = ATTENTION
    if gathered:  # words and their positions
        body = f"""g (int64[1,8] x) => (float[1,8,4] y) <float[9,4] words = {weight(9, 4)}, float[8,4] places = {weight(8, 4)},
            float[4,4] w = {weight(4, 4)}> {{ h = Gather(words, x) s = Add(h, places) y = MatMul(s, w) }}"""
    draw = np.random.default_rng(0)
    feeds = [
        {"x": draw.integers(0, 9, (1, 8)) if gathered else draw.normal(size=(1, 8, 4)).astype(np.float32)}
        for _ in range(4)
    ]
    made = insert_qdq(proto(body), BACKEND, data=feeds).model
    assert isinstance(made, onnx.ModelProto)
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(made.SerializeToString()), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    infos = [node.get_rt_info() for node in compiled.get_runtime_model().get_ops()]
    kernels = [
        str(info["primitiveType"].astype(str)).lower()
        for info in infos
        if str(info["layerType"].astype(str)).startswith(("MatMul", "FullyConnected"))
        or "_MatMul" in str(info["originalLayersNames"].astype(str))
    ]
    # On processors with VNNI both products of the attention are one kernel, named for its elementwise operators;
    # on those with AVX2 alone a conversion bears the name of a product.
    assert len(kernels) in ((1,) if gathered else (3, 4, 5))
    assert all(kernel.endswith("i8") for kernel in kernels), kernels


def test_types_that_openvino_multiplies() -> None:
    """The rule of the table, from the compiler itself: both with zero point 0, the second signed."""
    openvino = pytest.importorskip("openvino")
    core, taken = openvino.Core(), set()
    kinds = [("uint8", 128), ("uint8", 0), ("int8", 0), ("int8", 3)]
    for (first, one), (second, two) in itertools.product(kinds, repeat=2):
        text = f"""g (float[1,2,16,16] a, float[1,2,16,16] b) => (float[1,2,16,16] y) <float s = {{0.02}}, {first} p = {{{one}}}, {second} q = {{{two}}}>
            {{ aq = QuantizeLinear(a, s, p) ad = DequantizeLinear(aq, s, p) bq = QuantizeLinear(b, s, q) bd = DequantizeLinear(bq, s, q)
            y = MatMul(ad, bd) }}"""
        model = proto('<ir_version: 8, opset_import: ["" : 17]> ' + text)
        compiled = core.compile_model(
            core.read_model(model.SerializeToString()), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
        )
        infos = [node.get_rt_info() for node in compiled.get_runtime_model().get_ops()]
        (kernel,) = (str(i["primitiveType"].astype(str)) for i in infos if str(i["layerType"].astype(str)) == "MatMul")
        if kernel.lower().endswith("i8"):
            taken.add((first, one, second, two))
    assert {("int8", 0, "int8", 0), ("uint8", 0, "int8", 0)} <= taken
    assert not any(3 in kind or kind[:2] == ("uint8", 128) for kind in taken)
