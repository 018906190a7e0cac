"""What HTP wants of transformers, learned from its compiler: no table in float, offsets in int32, one type of activations."""

import numpy as np
import onnx
import pytest
import torch

from onnxqat import to_torch, write_back
from onnxqat.graph import io, qdq
from onnxqat.insertion.insert import insert_qdq
from onnxqat.types import Derived, Shared, TensorSpec
from tests.backends.planning import edges, plan, proto, weight

TABLES = ("qnn-htp", "qnn-htp-a16", "qnn-htp-w4", "qnn-htp-w4a16")
EMBEDDING = f"""g (int64[1,8] ids) => (float[1,8,4] y) <float[10,4] table = {weight(10, 4)}, float[4,4] w = {weight(4, 4)}> {{
    e = Gather(table, ids) y = MatMul(e, w) }}"""
NORMALIZED = f"""g (float[1,8,4] x) => (float[1,8,4] y)
    <float[4] gamma = {{1, 2, 1.5, 0.5}}, float[4] beta = {{1, -1, 0.5, 0}}, float[4,4] w = {weight(4, 4)}> {{
    n = LayerNormalization <axis = -1> (x, gamma, beta) y = MatMul(n, w) }}"""


@pytest.mark.parametrize("backend", TABLES)
def test_a_table_of_rows_is_quantized_on_the_grid_of_the_rows(backend: str) -> None:
    found = plan(EMBEDDING, backend)
    assert found.float_nodes == ()
    (table,) = edges(found)["table"]
    root = table.decision.root if isinstance(table.decision, Shared) else "table"
    (row,) = edges(found)["e"]
    assert root == (row.decision.root if isinstance(row.decision, Shared) else "e")


@pytest.mark.parametrize("backend", TABLES)
def test_an_offset_of_a_normalization_is_int32(backend: str) -> None:
    found = edges(plan(NORMALIZED, backend))
    assert found["beta"][0].decision == Derived("x", "gamma", "int32", 32)
    gamma = found["gamma"][0].decision
    assert isinstance(gamma, TensorSpec)
    assert (gamma.qtype.storage, gamma.granularity) == ("uint8", "tensor")


@pytest.mark.parametrize("backend", TABLES)
def test_both_sides_of_an_attention_product_have_the_type_of_activations(backend: str) -> None:
    found = edges(plan("g (float[1,8,4] a, float[1,4,8] b) => (float[1,8,8] y) { y = MatMul(a, b) }", backend))
    specs = [found[name][0].decision for name in "ab"]
    assert all(isinstance(spec, TensorSpec) and spec.qtype.storage.startswith("uint") for spec in specs)


def test_written_out_functions_become_operators_of_htp() -> None:
    text = """<ir_version: 8, opset_import: ["" : 18]> g (float[1,3,4] x) => (float[1,3,4] y)
        <float s = {1.4142135}, float one = {1}, float half = {0.5}, float two = {2}, float e = {0.001}, int64[1] l = {-1},
        float[4] g = {1, 2, 3, 4}> {
        d = Div(x, s) f = Erf(d) a = Add(f, one) m = Mul(x, a) gelu = Mul(m, half)
        q = Pow(gelu, two) v = ReduceMean(q, l) w = Add(v, e) r = Sqrt(w) n = Div(gelu, r) y = Mul(n, g) }"""
    x = np.random.default_rng(0).standard_normal((8, 3, 4)).astype(np.float32)
    made = insert_qdq(proto(text), "qnn-htp", data={"x": x}, fast=True)
    assert made.plan.float_nodes == ()
    operators = [n.op_type for n in made.model.graph.node if "Linear" not in n.op_type]
    assert operators == ["Gelu", "RMSNormalization"]


def test_the_offset_follows_gamma_in_training() -> None:
    x = np.random.default_rng(0).standard_normal((8, 8, 4)).astype(np.float32)
    made = insert_qdq(proto(NORMALIZED), "qnn-htp", data={"x": x}, fast=True).model
    assert isinstance(made, onnx.ModelProto)
    module = to_torch(made).train()
    gamma = next(p for name, p in module.named_parameters() if name == "gamma_quantizer.scale")
    with torch.no_grad():
        gamma.mul_(2)
    quantizers = {q.tensor: q for q in qdq.quantizers(io.load(write_back(module, made)))}
    (beta,) = (q for q in quantizers.values() if q.role == "bias")
    activation, factor = (next(q for name, q in quantizers.items() if name.startswith(n)) for n in ("x", "gamma"))
    np.testing.assert_allclose(beta.qparams.scale, activation.qparams.scale * factor.qparams.scale, rtol=1e-6)
