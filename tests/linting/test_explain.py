"""Explain: every pair with its parameters, the rule behind it, and why nodes are in float."""

import numpy as np
import pytest

from onnxqat.analysis import dataflow
from onnxqat.errors import UsageError
from onnxqat.insertion.insert import insert_qdq
from onnxqat.linting.explain import explain
from onnxqat.placement.table_overrides import Overrides
from tests.backends.planning import proto, weight
from tests.linting.cases import dynamic, qoperator
from tests.linting.qdq_files import changed, model

FLOAT = f"""<ir_version: 8, opset_import: ["" : 17]>
g (float[N,2,4,4] x) => (float[N,2,4,4] y) <float[2,2,1,1] w = {weight(2, 2, 1, 1)}, float[2] b = {{1, 2}}> {{
    ["first"] t = Conv(x, w, b) ["act"] a = Relu(t) ["hard"] h = Celu(a) ["last"] y = Conv(h, w, b) }}"""
DATA = {"x": np.random.default_rng(0).normal(size=(4, 2, 4, 4)).astype(np.float32)}


def test_pairs_of_a_file() -> None:
    found = explain(model())
    assert found.opset == 21
    pairs = {p.tensor: p for p in found.pairs}
    assert list(pairs) == ["x", "w", "bd", "r"]
    assert (pairs["x"].role, pairs["x"].grid, pairs["x"].granularity) == ("activation", "uint8", "tensor")
    assert pairs["x"].scale == (pytest.approx(0.05), pytest.approx(0.05))
    assert pairs["x"].zero_point == (120, 120)
    assert (pairs["x"].maker, pairs["x"].readers) == ("", ("Conv->t",))
    assert (pairs["w"].role, pairs["w"].granularity) == ("weight", "channel, axis 0")
    assert pairs["bd"].role == "bias"
    assert (pairs["r"].maker, pairs["r"].readers) == ("Relu->r", ())
    assert {p.wanted for p in found.pairs} == {None}
    assert [(f.node, f.op_type) for f in found.float_nodes] == [("Relu->r", "Relu")]
    assert "straight from Conv->t" in found.float_nodes[0].reason


def test_rules_of_a_backend() -> None:
    pairs = {p.tensor: p for p in explain(model(), "onnxruntime-cpu").pairs}
    assert {name: p.wanted for name, p in pairs.items()} == {
        "x": "Conv input 0",
        "w": "Conv input 1",
        "bd": "Conv bias",
        "r": "Conv output behind its activation",
    }
    assert {p.tensor: p.wanted for p in explain(model(), "tensorrt").pairs}["r"] == ""


def test_why_nodes_are_float() -> None:
    made = insert_qdq(proto(FLOAT), data=DATA, overrides=Overrides(exclude=("last",))).model
    found = explain(made)
    reasons = {f.node: f.reason for f in found.float_nodes}
    assert reasons["last"] == "excluded by 'last'"
    assert reasons["hard"] == "onnxruntime-cpu has no row for Celu"
    assert {p.rule for p in found.pairs if p.tensor == "x"} == {"Conv input 0"}
    assert set(reasons) == {"last", "hard", "act"}
    assert set(explain(made, "onnxruntime-cpu").float_nodes) < set(found.float_nodes)


def test_a_missing_pair_is_the_reason() -> None:
    found = explain(changed(("(xd, wd, bd)", "(x, wd, bd)")))
    assert {f.node: f.reason for f in found.float_nodes}["Conv->t"] == "'x' carries no pair"


def test_around_one_node() -> None:
    found = explain(model(), node="Conv->t")
    assert [p.tensor for p in found.pairs] == ["x", "w", "bd"]
    assert found.float_nodes == ()
    assert [p.tensor for p in explain(model(), node="r").pairs] == ["r"]


def test_an_unknown_node() -> None:
    with pytest.raises(UsageError, match="no node named 'Conv->u'") as caught:
        explain(model(), node="Conv->u")
    assert "Conv->t" in caught.value.hint


JOINED = """<ir_version: 8, opset_import: ["" : 17]> g (float[N,2,4] x, float[N,3,4] v) => (float[N,5,4] y)
<float s = {0.5}, uint8 z = {0}, float t = {0.125}, uint8 u = {128}> {
    xq = QuantizeLinear (x, s, z)  a = DequantizeLinear (xq, s, z)
    vq = QuantizeLinear (v, t, u)  b = DequantizeLinear (vq, t, u)
    ["join"] c = Concat <axis = 1> (a, b)
    cq = QuantizeLinear (c, s, z)  y = DequantizeLinear (cq, s, z) }"""


def test_both_ways_to_run_a_concat_have_their_cost() -> None:
    """Branches of 0..127.5 and -16..15.875 share steps of 143.5 / 255; the second alone is on another grid than the result."""
    first, second = explain(proto(JOINED)).joins
    assert (first.node, first.tensor, second.tensor) == ("join", "x", "v")
    assert first.shared_scale == second.shared_scale == pytest.approx(143.5 / 255)
    assert first.bits_lost == pytest.approx(np.log2(143.5 / 127.5))
    assert second.bits_lost == pytest.approx(np.log2(143.5 / 255 / 0.125))
    assert (first.requantized, second.requantized) == (0, 12)
    alike = JOINED.replace("(v, t, u)", "(v, s, z)").replace("(vq, t, u)", "(vq, s, z)")
    assert [(j.bits_lost, j.requantized) for j in explain(proto(alike)).joins] == [(pytest.approx(0), 0)] * 2
    assert explain(proto(JOINED), node="v").joins == (second,)
    assert "joins (2 rows)" in str(explain(proto(JOINED)))


def test_a_node_asked_for_that_computes_no_data_says_so() -> None:
    """The zeros that a recurrent state starts from are no data, so that the list of float nodes leaves them out."""
    body = "n = Shape(x) h = ConstantOfShape(n) k = Relu(h) y = Add(x, k)"
    made = model(body)
    assert not {f.node for f in explain(made).float_nodes} & {"ConstantOfShape->h", "Relu->k"}
    assert [f.reason for f in explain(made, node="Relu->k").float_nodes] == [dataflow.NOT_DATA]


def test_operators_on_codes_are_no_float_nodes() -> None:
    assert "QLinearConv" not in {f.op_type for f in explain(qoperator()).float_nodes}
    assert "ConvInteger" not in {f.op_type for f in explain(dynamic()).float_nodes}
