"""What is divided by, or what a Log or a root reads, lies on no grid; layers with weights keep their kernels."""

import pytest

from tests.backends.planning import edges, plan, weight

FILTERS = "{" + ",".join(str(i % 3) for i in range(64)) + "}"
HEAD = """g (float[2,16] x) => (float[2,4] y) <float[16,16] w = WIDE, float[16,4] v = NARROW,
    float one = {1}, float tiny = {0.000001}, float half = {0.5}, int64[1] axes = {1}, float[16,4] bank = BANK>
    { h = MatMul(x, w) %s y = MatMul(a, v) }"""
HEAD = HEAD.replace("WIDE", weight(16, 16)).replace("NARROW", weight(16, 4)).replace("BANK", FILTERS)

WRITTEN = {
    "sum of an exponential": "n = Neg(h) e = Exp(n) d = Add(e, one) a = Div(h, d)",
    "reciprocal": "n = Neg(h) e = Exp(n) d = Add(e, one) a = Reciprocal(d)",
    "softplus": "e = Exp(h) d = Add(e, one) a = Log(d)",
    "power": "e = Mul(h, h) d = Add(e, tiny) q = Pow(d, half) a = Div(h, q)",
    "ratio": "e = Relu(h) d = Add(e, tiny) a = Div(h, d)",
    "length": "e = Mul(h, h) s = ReduceSum(e, axes) d = Sqrt(s) a = Div(h, d)",
    "logarithm of a power": "e = Mul(h, h) d = Max(e, tiny) a = Log(d)",
}


@pytest.mark.parametrize("backend", ["onnxruntime-cpu", "openvino-cpu", "qnn-htp", "rknn", "esp-dl"])
@pytest.mark.parametrize("form", WRITTEN)
def test_nothing_that_is_divided_by_is_on_a_grid(form: str, backend: str) -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> ' + HEAD % WRITTEN[form]
    found = set(edges(plan(text, backend)))
    assert not found & {"e", "d", "s", "q"}
    assert {"x", "w", "a", "v"} <= found


def test_the_reason_names_the_operator_that_reads_it() -> None:
    found = dict(plan(HEAD % WRITTEN["ratio"], "qnn-htp").float_nodes)
    assert found["d_Add"].startswith("Div reads it")
    assert found["a_Div"].startswith("Div makes as much")


def test_a_summand_that_is_no_epsilon_ends_the_way() -> None:
    found = set(edges(plan(HEAD % "e = Abs(h) d = Add(e, one) a = Div(h, d)", "qnn-htp")))
    assert "e" in found
    assert "d" not in found


def test_what_a_chosen_operator_reads_lies_on_a_grid() -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> ' + HEAD % WRITTEN["length"]
    found = set(edges(plan(text, "onnxruntime-cpu", integer="div,sqrt")))
    assert {"h", "s", "d", "a"} <= found


def test_filters_of_energies_stay_float_in_front_of_a_log() -> None:
    text = HEAD.replace("y = MatMul(a, v)", "y = Identity(a)")
    found = set(edges(plan(text % "e = Mul(h, h) m = MatMul(e, bank) d = Max(m, tiny) a = Log(d)", "qnn-htp")))
    assert not found & {"e", "m", "d", "bank"}
    assert "w" in found


def test_what_a_layer_reads_too_keeps_its_grid() -> None:
    body = "e = Mul(h, h) d = Add(e, tiny) c = MatMul(e, w) a = Div(c, d)"
    assert "e" in edges(plan(HEAD % body, "onnxruntime-cpu"))


RESPONSE = """<ir_version: 8, opset_import: ["" : 17]> g (float[2,8,6,6] x) => (float[2,8,6,6] y)
    <float[8,8,1,1] w = WIDE, float[8,8,1,1] v = WIDE, float tiny = {0.000001}>
    { h = Conv(x, w) r = Sigmoid(h) %s n = Div(l, d) p = Mul(r, n) s = Add(p, r) y = Conv(s, v) }"""
RESPONSE = RESPONSE.replace("WIDE", weight(8, 8, 1, 1))


LENGTHS = {
    "one operator": "l = ReduceL2 <axes: ints = [2, 3]> (r)",
    "squares": "q = Mul(r, r) o = ReduceMean <axes: ints = [2, 3]> (q) l = Sqrt(o)",
}


@pytest.mark.parametrize("form", LENGTHS)
@pytest.mark.parametrize("backend", ["onnxruntime-cpu", "openvino-cpu", "qnn-htp", "rknn"])
def test_a_sum_over_the_sample_leaves_the_grid_of_what_others_read(backend: str, form: str) -> None:
    """The global response normalization of ConvNeXtV2."""
    body = LENGTHS[form] + " m = ReduceMean <axes: ints = [1]> (l) d = Add(m, tiny)"
    found = plan(RESPONSE % body, backend)
    assert "r_Sigmoid" not in dict(found.float_nodes)
    assert not set(edges(found)) & {"q", "o", "l", "m", "d"}


def test_a_sum_over_a_part_of_the_sample_does_not() -> None:
    body = LENGTHS["one operator"] + " d = Add(l, tiny)"
    assert "Div reads it" in dict(plan(RESPONSE % body, "qnn-htp").float_nodes)["r_Sigmoid"]


def test_what_is_divided_alone_by_its_sum_lies_on_no_grid() -> None:
    body = "e = Abs(h) m = ReduceMean <axes: ints = [1]> (e) d = Add(m, tiny) a = Div(e, d)"
    assert "e" not in edges(plan('<ir_version: 8, opset_import: ["" : 17]> ' + HEAD % body, "qnn-htp"))
