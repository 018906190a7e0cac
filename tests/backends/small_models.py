"""Small models with what backends treat differently: four kinds of network, random weights, as ONNX text."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

import numpy as np
import onnx

CONVOLUTIONS = """g (float[1,4,16,16] x) => (float[1,5] y) <W> {
    a = Conv<pads = [1,1,1,1]>(x, w8_4_3_3, b8) b = Relu(a)
    c = Conv<pads = [1,1,1,1], group = 8>(b, w8_1_3_3, b8) d = Clip(c, zero, six)
    e = Conv(d, w8_8_1_1, b8) f = Add(b, e) h = Relu(f)
    m = MaxPool<kernel_shape = [2,2], strides = [2,2]>(h)
    i = Conv<pads = [1,1,1,1]>(m, w8_8_3_3, b8) j = Relu(i)
    k = AveragePool<kernel_shape = [3,3], pads = [1,1,1,1]>(m)
    l = Concat<axis = 1>(j, k) n = Conv(l, w8_16_1_1, b8)
    o = GlobalAveragePool(n) p = Flatten(o) y = Gemm<transB = 1>(p, w5_8, b5) }"""

ACTIVATIONS = """g (float[1,4,8,8] x) => (float[1,4,16,16] y) <W> {
    a = Conv(x, w8_4_1_1, b8) s = Sigmoid(a) b = Mul(a, s)
    p = GlobalAveragePool(b) q = Conv(p, w8_8_1_1, b8) r = HardSigmoid(q) c = Mul(b, r)
    d = Conv(c, w8_8_1_1, b8) e = HardSwish(d)
    f = Conv(e, w8_8_1_1, b8) h = LeakyRelu(f)
    i = Conv(h, w8_8_1_1, b8) j = PRelu(i, b1)
    k = Tanh(j) l = Sigmoid(j) m = Concat<axis = 1>(k, l, h)
    n = Conv(m, w8_24_1_1, b8) o = Sub(n, h) t = Max(o, n)
    u = Resize<mode = "nearest">(t, , scales) v = ConvTranspose(u, w8_4_1_1, b4)
    y = Add(v, small) }"""

ATTENTION = """g (float[1,6,8] x) => (float[1,6,8] y) <W> {
    q = MatMul(x, w8_8) k = MatMul(x, w8_8) v = MatMul(x, w8_8)
    qs = Reshape(q, heads) ks = Reshape(k, heads) vs = Reshape(v, heads)
    qh = Transpose<perm = [0,2,1,3]>(qs) kh = Transpose<perm = [0,2,3,1]>(ks) vh = Transpose<perm = [0,2,1,3]>(vs)
    s = MatMul(qh, kh) d = Div(s, two) t = Add(d, mask) p = Softmax(t) o = MatMul(p, vh)
    ot = Transpose<perm = [0,2,1,3]>(o) of = Reshape(ot, flat) z = MatMul(of, w8_8) r = Add(x, z)
    mean = ReduceMean(r, last) c = Sub(r, mean) c2 = Mul(c, c) var = ReduceMean(c2, last)
    ve = Add(var, epsilon) sd = Sqrt(ve) n = Div(c, sd) g1 = Mul(n, gamma) n1 = Add(g1, gamma)
    m = MatMul(n1, w8_16) mb = Add(m, b16) er = Div(mb, two) e = Erf(er) e1 = Add(e, one) e2 = Mul(mb, e1)
    f = MatMul(e2, w16_8) y = Add(r, f) }"""

DETECTOR = """g (float[1,4,16,16] x) => (float[1,6,N] y, float[1,2,8,8] centre) <W> {
    a = Conv<pads = [1,1,1,1], strides = [2,2]>(x, w8_4_3_3, b8) b = Relu(a)
    c = Conv<pads = [1,1,1,1], strides = [2,2]>(b, w8_8_3_3, b8) d = Relu(c)
    u = Resize<mode = "nearest">(d, , scales) f = Concat<axis = 1>(b, u)
    h = Conv(f, w8_16_1_1, b8) i = Relu(h)
    cls = Conv(i, w2_8_1_1, b2) score = Sigmoid(cls)
    box = Conv(i, w4_8_1_1, b4) xy, wh = Split<axis = 1, num_outputs = 2>(box)
    size = Exp(wh) at = Mul(xy, stride) centre = Identity(at)
    all = Concat<axis = 1>(at, size, score) y = Reshape(all, boxes) }"""

TEXTS = {"convolutions": CONVOLUTIONS, "activations": ACTIVATIONS, "attention": ATTENTION, "detector": DETECTOR}
_CONSTANTS = (
    "float zero = {0}, float six = {6}, float one = {1}, float two = {2}, float epsilon = {0.001}, float stride = {8}, "
    "float small = {0.25}, float[4] scales = {1, 1, 2, 2}, int64[4] heads = {1, 6, 2, 4}, int64[3] flat = {1, 6, 8}, "
    "int64[1] last = {-1}, int64[3] boxes = {1, 6, -1}, float[1,1,6,6] mask = {MASK}, "
    "float[8] gamma = {1, 0.5, 2, 1, 0.7, 1.3, 1, 0.9}"
)


@functools.cache
def model(name: str, opset: int = 18) -> onnx.ModelProto:
    """The model called `name`, weights from a fixed seed: those called ``w8_4_1_1`` have that shape."""
    random = np.random.default_rng(5)
    found = re.findall(r"\b([wb]\d+(?:_\d+)*)\b", TEXTS[name])
    parts = [_constant(weight, random.standard_normal) for weight in dict.fromkeys(found)]
    mask = ", ".join("0" if i // 6 >= i % 6 else "-1" for i in range(36))
    used = [c for c in re.split(r", (?=float|int64)", _CONSTANTS) if re.search(rf"\b{_name(c)}\b", TEXTS[name])]
    constants = ", ".join([*parts, *used]).replace("{MASK}", f"{{{mask}}}")
    text = TEXTS[name].replace("<W>", f"<{constants}>")
    made = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {text}')
    onnx.checker.check_model(made, full_check=True)
    return made


def _name(constant: str) -> str:
    return constant.split(" = ")[0].split()[-1]


def _constant(name: str, draw: Callable[[int], np.ndarray]) -> str:
    shape = [int(n) for n in name[1:].split("_")]
    size = int(np.prod(shape))
    fan = max(1, size // shape[0] if name.startswith("w") and len(shape) > 2 else shape[0])
    values = draw(size) * (0.1 if name.startswith("b") else 1.5 / fan**0.5)
    return f"float[{','.join(map(str, shape))}] {name} = {{{', '.join(f'{v:.5f}' for v in values)}}}"


def batches(name: str, count: int = 12) -> dict[str, np.ndarray]:
    """`count` samples of normal numbers for the model's input."""
    dims = [d.dim_value for d in model(name).graph.input[0].type.tensor_type.shape.dim]
    return {"x": np.random.default_rng(6).standard_normal((count, *dims[1:])).astype(np.float32)}
