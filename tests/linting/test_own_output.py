"""What insert-qdq writes has no errors and no warnings, whatever the backend."""

import functools

import numpy as np
import onnx
import pytest

from onnxqat.backends import schema
from onnxqat.insertion.insert import insert_qdq
from onnxqat.linting.lint import lint
from onnxqat.placement.table_overrides import Overrides
from tests.backends.planning import proto, weight
from tests.repetitions import pairs

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\ng (float[N,3,8,8] image) => '
W = f"float[4,3,3,3] w = {weight(4, 3, 3, 3)}, float[4] b = {{0.25, -0.5, 0.1, 0.3}}, float[4,4,3,3] u = {weight(4, 4, 3, 3)}"
MODELS = {
    "residual": f"""{HEAD} (float[N,4] logits) <{W}, float[4,4,1,1] e = {weight(4, 4, 1, 1)}, float lo = {{0}}, float hi = {{6}},
        float[8,4] v = {weight(8, 4)}, float[4] c = {{1, 2, 3, 4}}> {{
        t = Conv<pads=[1,1,1,1]>(image, w, b) a = Clip(t, lo, hi) d = Conv<pads=[1,1,1,1]>(a, u) s = Add(d, a) r = Relu(s)
        m = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r) x = Conv(m, e) y = Relu(x)
        p = AveragePool<kernel_shape=[3,3], pads=[1,1,1,1], count_include_pad=1>(m) k = Concat<axis=1>(y, p)
        g = GlobalAveragePool(k) f = Flatten(g) logits = Gemm(f, v, c) }}""",
    "gated": f"""{HEAD} (float[N,4,8,8] y, float[N,4,8,8] score) <{W}> {{
        t = Conv<pads=[1,1,1,1]>(image, w, b) g = Sigmoid(t) a = Mul(t, g) h = Conv<pads=[1,1,1,1]>(a, u) s = HardSwish(h)
        l = LeakyRelu(s) y = Conv<pads=[1,1,1,1]>(l, u) z = Conv<pads=[1,1,1,1]>(l, u) score = Sigmoid(z) }}""",
    "attention": f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[N,6,8] x) => (float[N,6,8] y) <float[8,8] q = {weight(8, 8)}, float[8,8] k = {weight(8, 8)},
        float[8,8] v = {weight(8, 8)}, float[8] g = {{1,1,1,1,1,1,1,1}}, float s = {{0.35}}, float[6] mask = {{0,0,0,0,0,-3.4e38}}> {{
        n = LayerNormalization(x, g) Q = MatMul(n, q) K = MatMul(n, k) V = MatMul(n, v) T = Transpose<perm=[0,2,1]>(K)
        a = MatMul(Q, T) c = Mul(a, s) m = Add(c, mask) P = Softmax<axis=-1>(m) O = MatMul(P, V) y = Add(O, x) }}""",
    "deconvolution": f"""{HEAD} (float[N,2,16,16] y) <{W}, float[4,2,2,2] e = {weight(4, 2, 2, 2)}> {{
        t = Conv<pads=[1,1,1,1]>(image, w, b) r = Relu(t) y = ConvTranspose<strides=[2,2]>(r, e) }}""",
    "cache": f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[N,6,8] x) => (float[N,6,8] y, float[N,12,8] keys) <float[8,8] k = {weight(8, 8)}> {{
        K = MatMul(x, k) keys = Concat<axis=1>(x, K) T = Transpose<perm=[0,2,1]>(keys) a = MatMul(x, T) P = Softmax(a)
        y = MatMul(P, keys) }}""",
    "constant": f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[1,3,8,8] image) => (float[1,4,8,8] y) <{W}, float[1,1,8,8] k = {weight(1, 1, 8, 8)},
        float[4,5,1,1] v = {weight(4, 5, 1, 1)}> {{
        t = Conv<pads=[1,1,1,1]>(image, w, b) c = Concat<axis=1>(t, k) y = Conv(c, v) }}""",
    "unread": f"""<ir_version: 8, opset_import: ["" : 18]>
        g (float[N,3,8,8] image) => (float[N,4,8,8] y) <{W}, float[4,2,1,1] v = {weight(4, 2, 1, 1)}> {{
        t = Conv<pads=[1,1,1,1]>(image, w, b) r, s = Split<axis=1, num_outputs=2>(t) y = Conv(s, v) }}""",
    "branches": f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[N,6,8] x) => (float[N,6,8] y) <float[8,8] k = {weight(8, 8)}, float zero = {{0}}> {{
        a = MatMul(x, k) m = ReduceMax<keepdims=0>(a) c = Greater(m, zero)
        y = If(c) <then_branch = yes () => (float[N,6,8] r) {{ r = MatMul(a, k) }},
                   else_branch = no () => (float[N,6,8] t) {{ n = Relu(a) t = MatMul(n, k) }}> }}""",
}


@functools.cache
def model(name: str) -> onnx.ModelProto:
    return proto(MODELS[name])


def data(found: onnx.ModelProto) -> dict[str, np.ndarray]:
    value = found.graph.input[0]
    sizes = [d.dim_value for d in value.type.tensor_type.shape.dim][1:]
    count = value.type.tensor_type.shape.dim[0].dim_value or 4
    return {value.name: np.random.default_rng(0).normal(size=(count, *sizes)).astype(np.float32)}


@pytest.mark.parametrize(("name", "backend"), pairs([*MODELS], schema.names()))
def test_own_output_is_clean(name: str, backend: str) -> None:
    result = insert_qdq(model(name), backend, data=data(model(name)))
    if not sum(result.quantizers.values()):
        return  # tables of weights alone have no row for any operator of some of these models
    report = lint(result.model, backend)
    assert [(f.code, f.node, f.message) for f in report.findings if f.severity != "note"] == []
    assert report.backend == backend


@pytest.mark.parametrize("backend", ["openvino-cpu", "qnn-htp"])
def test_own_output_with_exact_is_clean(backend: str) -> None:
    """Down to notes that a pair is of no use: it stands in front of SiLUs where the table fuses them."""
    found = model("gated")
    result = insert_qdq(found, backend, data=data(found), overrides=Overrides(exact=True))
    report = lint(result.model, backend)
    findings = [(f.code, f.node, f.message) for f in report.findings if f.severity != "note" or "pair" in f.code]
    assert findings == []


def test_integers_that_the_caller_gives_are_quantized() -> None:
    text = """g (uint8[1,4] codes) => (float[1,2] y) <float s = {0.02}, uint8 z = {128}, float[4,2] w = {1,2,3,4,5,6,7,8}> {
        x = DequantizeLinear(codes, s, z) y = MatMul(x, w) }"""
    codes = np.random.default_rng(0).integers(0, 255, (1, 4)).astype(np.uint8)
    result = insert_qdq(proto(text), data={"codes": codes}, keep=True)
    assert result.quantizers["weight"] == 1
    assert not lint(result.model, "onnxruntime-cpu").count("warning")
