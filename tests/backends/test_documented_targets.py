"""Tables written from vendors' documents alone: what is particular to each."""

from onnxqat.types import Derived, QType
from tests.backends.planning import decision, edges, plan, root, spec, weight

CONV = f"float[4,4,1,1] w = {weight(4, 4, 1, 1)}, float[4] bias = {{0.1, -0.1, 0.2, 0.3}}"
MATRIX = f"float[4,4] m = {weight(4, 4)}"
ATTENTION = f"""g (float[1,4,4] x) => (float[1,4,4] out) <{MATRIX}> {{
    q = MatMul(x, m) k = Transpose<perm = [0,2,1]>(q) s = MatMul(q, k) p = Softmax(s) out = MatMul(p, q) }}"""
SUM = f"""g (float[1,4,4,4] x) => (float[1,4,4,4] out) <{CONV}> {{
    a = Conv(x, w, bias) b = Conv(a, w, bias) s = Add(a, b) out = Conv(s, w, bias) }}"""


def test_ascend_quantizes_products_with_constants_alone() -> None:
    found = plan(ATTENTION, "ascend")
    assert spec(found, "m").granularity == "tensor"
    assert set(edges(found)) == {"x", "m"}


def test_ascend_has_pairs_on_inputs_and_zero_points() -> None:
    found = plan(SUM, "ascend")
    assert spec(found, "w").granularity == "channel"
    assert not spec(found, "a").symmetric
    assert "out" not in edges(found)


def test_axera_multiplies_activations_in_16_bits() -> None:
    found = plan(ATTENTION, "axera-pulsar2")
    assert spec(found, "p").qtype == QType("int16", -32768, 32767)
    assert spec(found, "m").qtype == QType("int8", -127, 127)


def test_axera_has_int32_biases_of_convolutions_and_own_branches() -> None:
    text = f"""g (float[1,4,4,4] x) => (float[1,8,4,4] out) <{CONV}> {{
        a = Conv(x, w, bias) r = Relu(a) c = Concat<axis = 1>(x, r) out = Neg(c) }}"""
    found = plan(text, "axera-pulsar2")
    assert isinstance(decision(found, "bias"), Derived)
    assert len({root(found, name) for name in "xrc"}) == 3


def test_axera_puts_a_pair_in_front_of_a_silu_and_none_inside() -> None:
    text = f"""g (float[1,4,4,4] x) => (float[1,4,4,4] out) <{CONV}> {{
        a = Conv(x, w, bias) s = Sigmoid(a) y = Mul(a, s) out = Conv(y, w, bias) }}"""
    assert {"a", "y"} <= set(edges(plan(text, "axera-pulsar2")))
    assert "s" not in edges(plan(text, "axera-pulsar2"))


def test_npu_operands_of_a_sum_share_a_scale() -> None:
    found = plan(SUM, "openvino-npu")
    assert root(found, "a") == root(found, "b")
    assert root(found, "s") != root(found, "a")


def test_gpu_needs_no_narrow_weights() -> None:
    assert spec(plan(SUM, "openvino-cpu"), "w").saturates
    assert not spec(plan(SUM, "openvino-gpu"), "w").saturates
