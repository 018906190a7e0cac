"""For each rule a file that has the defect, and one that has not."""

import dataclasses
from collections.abc import Callable

import ml_dtypes
import numpy as np
import onnx
from onnx import helper

from tests.linting.qdq_files import SOUND, WEIGHT, changed, model

Make = Callable[[], onnx.ModelProto]
F, I8, U8 = np.float32, np.int8, np.uint8


@dataclasses.dataclass(frozen=True)
class Case:
    """One rule: a file with its defect, one without it, and the backend where the rule needs a table."""

    code: str
    bad: Make
    good: Make = model


def _bounds(low: int, high: int) -> Make:
    return lambda: changed(
        ("xd = DequantizeLinear(xq", "xc = Clip(xq, lo, hi) xd = DequantizeLinear(xc"), lo=U8(low), hi=U8(high)
    )


def _blocks(*shape: int) -> Make:
    body = "wd = DequantizeLinear<axis=1, block_size=2>(c, bscale, bzero) y = MatMul(x, wd)"
    constants = {"c": np.ones((4, 4), I8), "bscale": np.full(shape, 0.1, F), "bzero": np.zeros(shape, I8)}
    return lambda: model(body, constants, inputs="float[2,4] x", outputs="float[2,4] y")


def _bias(*values: float) -> Make:
    body = SOUND.replace("bd = DequantizeLinear<axis=0>(b, bs, bz)", "").replace("bd)", "fb)")
    return lambda: model(body, {"fb": np.asarray(values, F)})


def _weight(edit: Callable[[np.ndarray], None]) -> Make:
    def make() -> onnx.ModelProto:
        weight = WEIGHT.copy()
        edit(weight)
        return changed(w=weight)

    return make


def _one(weight: np.ndarray) -> None:
    weight[0, 0, 0, 0] = 50.0


def _vanish(weight: np.ndarray) -> None:
    weight[1] *= 0.001


def _kill(weight: np.ndarray) -> None:
    weight[1] = 0.0


def _stored(codes: np.ndarray) -> Make:
    body = SOUND.replace("wq = QuantizeLinear<axis=0>(w, ws, wz)", "").replace("(wq, ws", "(wc, ws")
    return lambda: model(body, {"wc": codes.astype(I8)})


def _inner(second_scale: float, zero: int = 0) -> Make:
    pair = "iq = QuantizeLinear(t, is, iz) id = DequantizeLinear(iq, is, iz) r = Relu(id)"
    return lambda: changed(("r = Relu(t)", pair), **{"is": F(second_scale), "iz": U8(zero), "rz": U8(zero)})


def _pooled(scale: float) -> Make:
    body = """xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z) m = MaxPool<kernel_shape=[2,2]>(xd)
    mq = QuantizeLinear(m, ms, z) y = DequantizeLinear(mq, ms, z)"""
    return lambda: model(body, {"ms": F(scale)}, outputs="float[1,2,3,3] y")


def _joined(second: float, together: float) -> Make:
    body = """xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z)
    uq = QuantizeLinear(u, us, z) ud = DequantizeLinear(uq, us, z) c = Concat<axis=1>(xd, ud)
    cq = QuantizeLinear(c, cs, z) y = DequantizeLinear(cq, cs, z)"""
    inputs = "float[1,2,4,4] x, float[1,2,4,4] u"
    return lambda: model(body, {"us": F(second), "cs": F(together)}, inputs=inputs, outputs="float[1,4,4,4] y")


def _added(second: float, together: float) -> Make:
    body = """xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z)
    uq = QuantizeLinear(u, us, z) ud = DequantizeLinear(uq, us, z) c = Add(xd, ud)
    cq = QuantizeLinear(c, cs, z) y = DequantizeLinear(cq, cs, z)"""
    inputs = "float[1,2,4,4] x, float[1,2,4,4] u"
    return lambda: model(body, {"us": F(second), "cs": F(together)}, inputs=inputs)


def _branch(*, quantized: bool) -> Make:
    other = "uq = QuantizeLinear(u, s, z) ud = DequantizeLinear(uq, s, z)" if quantized else "ud = Relu(u)"
    body = f"""xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z) {other} c = Add(xd, ud)
    cq = QuantizeLinear(c, rs, z) y = DequantizeLinear(cq, rs, z)"""
    return lambda: model(body, inputs="float[1,2,4,4] x, float[1,2,4,4] u")


def _masked(value: float) -> Make:
    body = """xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z)
    mq = QuantizeLinear(mask, ms, z) md = DequantizeLinear(mq, ms, z) y = Add(xd, md)"""
    return lambda: model(body, {"mask": np.asarray([0, 0, 0, value], F), "ms": F(0.1)})


def _clipped(*, quantized: bool) -> Make:
    low = "lq = QuantizeLinear(lo, s, z) ld = DequantizeLinear(lq, s, z)" if quantized else "ld = Identity(lo)"
    body = f"xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z) {low} y = Clip(xd, ld)"
    return lambda: model(body, {"lo": F(-1)})


def _indexed(*, quantized: bool) -> Make:
    pair = "uq = QuantizeLinear(u, s, z) ud = DequantizeLinear(uq, s, z)" if quantized else "ud = Relu(u)"
    body = f"{pair} i = Cast<to=7>(ud) xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z) y = Gather(xd, i)"
    return lambda: model(body, inputs="float[4] x, float[2] u", outputs="float[2] y")


def _normalized(*, inside: bool) -> Make:
    pair = "vq = QuantizeLinear(v, s, z) vd = DequantizeLinear(vq, s, z)" if inside else "vd = Identity(v)"
    body = f"""xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z)
    m = ReduceMean<keepdims=1>(xd, ax) d = Sub(xd, m) q = Mul(d, d) v = ReduceMean<keepdims=1>(q, ax)
    {pair} e = Add(vd, eps) r = Sqrt(e) y = Div(d, r)"""
    return lambda: model(body, {"ax": np.asarray([-1]), "eps": F(1e-5)})


def _layer_norm(*, quantized: bool) -> Make:
    pair = "xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z)" if quantized else "xd = Relu(x)"
    body = f"{pair} n = LayerNormalization(xd, g) nq = QuantizeLinear(n, s, z) y = DequantizeLinear(nq, s, z)"
    return lambda: model(body, {"g": np.ones(4, F)})


def _sigmoid(tail: str, scale: float, zero: int = 0) -> Make:
    body = f"""xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z) g = Sigmoid(xd)
    gq = QuantizeLinear(g, gs, gz) gd = DequantizeLinear(gq, gs, gz) {tail}"""
    return lambda: model(body, {"gs": F(scale), "gz": U8(zero)})


def _softmax(high: int) -> Make:
    body = """xq = QuantizeLinear(x, s, z) xc = Clip(xq, lo, hi) xd = DequantizeLinear(xc, s, z) y = Softmax(xd)"""
    return lambda: model(body, {"lo": U8(0), "hi": U8(high), "z": U8(8)})


def _topk(*, quantized: bool) -> Make:
    pair = "xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z)" if quantized else "xd = Relu(x)"
    return lambda: model(f"{pair} y, i = TopK(xd, k)", {"k": np.asarray([2])}, outputs="float[1,2,4,2] y")


def _gemm(attributes: str) -> Make:
    body = f"""xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z)
    wq = QuantizeLinear(v, vs, vz) wd = DequantizeLinear(wq, vs, vz) y = Gemm{attributes}(xd, wd)"""
    constants = {"v": np.eye(4, dtype=F), "vs": F(0.02), "vz": I8(0)}
    return lambda: model(body, constants, inputs="float[2,4] x", outputs="float[2,4] y")


def _batchnorm() -> onnx.ModelProto:
    vectors = {name: np.ones(2, F) for name in ("g", "be", "mu", "va")}
    return changed(("r = Relu(t)", "n = BatchNormalization(t, g, be, mu, va) r = Relu(n)"), **vectors)


def _random() -> onnx.ModelProto:
    made = model()
    helper.set_model_props(made, {"onnxqat.calibration": "random"})
    return made


def _small_floats(saturate: int) -> Make:
    body = f"xq = QuantizeLinear<saturate={saturate}>(x, s, z) y = DequantizeLinear(xq, s, z)"
    return lambda: model(body, {"z": np.asarray(0, ml_dtypes.float8_e4m3fn)})


def _half() -> onnx.ModelProto:
    body = "xq = QuantizeLinear(x, h, z) y = DequantizeLinear(xq, h, z)"
    return model(body, {"h": np.float16(0.05)}, inputs="float16[1,2] x", outputs="float16[1,2] y")


def _overridable() -> onnx.ModelProto:
    return model(inputs="float[1,2,4,4] x, float s")


def _bodies(second: str) -> Make:
    """Two branches of an If whose inner tensors are called `u` and `second`."""
    branches = "".join(
        f"{which} = {which}_graph () => (float[1,2,4,4] {out}) {{ {name} = Relu(xd) {out} = Neg({name}) }}, "
        for which, out, name in (("then_branch", "o1", "u"), ("else_branch", "o2", second))
    ).rstrip(", ")
    body = f"xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z) y = If<{branches}>(c)"
    return lambda: model(body, inputs="float[1,2,4,4] x, bool c")


def qoperator() -> onnx.ModelProto:
    return changed(
        (
            "t = Conv<pads=[1,1,1,1]>(xd, wd, bd)",
            "tq = QLinearConv<pads=[1,1,1,1]>(xq, s, z, wq, ws, wz, rs, rz) t = DequantizeLinear(tq, rs, rz)",
        )
    )


def dynamic() -> onnx.ModelProto:
    return changed(
        (
            "t = Conv<pads=[1,1,1,1]>(xd, wd, bd)",
            "xi, xs, xz = DynamicQuantizeLinear(x) ti = ConvInteger<pads=[1,1,1,1]>(xi, wq, xz) tf = Cast<to=1>(ti) t = Mul(tf, xs)",
        )
    )


def _vendor() -> onnx.ModelProto:
    made = changed(("r = Relu(t)", "r0 = acme.FakeQuantize(t) r = Relu(r0)"))
    made.opset_import.add(domain="acme", version=1)
    return made


SECOND = "xd = DequantizeLinear(xq, s, z)"
GENERAL = (
    Case("scale-zero", lambda: changed(s=F(0))),
    Case("scale-negative", lambda: changed(s=F(-0.05))),
    Case("scale-not-finite", lambda: changed(ws=np.asarray([0.01, np.nan], F))),
    Case("scale-denormal", lambda: changed(ws=np.asarray([0.01, 1e-40], F))),
    Case(
        "scale-computed", lambda: changed(("xq = QuantizeLinear(x, s, z)", "k = Abs(s) xq = QuantizeLinear(x, k, z)"))
    ),
    Case("scale-shape", lambda: changed(z=np.asarray([120, 120], U8)), lambda: changed(s=np.asarray([0.05], F))),
    Case("scale-one-element", lambda: changed(s=np.asarray([0.05], F), z=np.asarray([120], U8))),
    Case("axis-out-of-range", lambda: changed(("QuantizeLinear<axis=0>(w,", "QuantizeLinear<axis=5>(w,"))),
    Case("axis-length", lambda: changed(ws=np.full(3, 0.01, F), wz=np.zeros(3, I8))),
    Case("block-shape", _blocks(4, 1), _blocks(4, 2)),
    Case("zero-point-type", lambda: changed((SECOND, "xd = DequantizeLinear(xq, s, zi)"), zi=I8(0))),
    Case("zero-point-omitted", lambda: changed(("(wq, ws, wz)", "(wq, ws)"))),
    Case("zero-point-outside-grid", _bounds(130, 255), _bounds(0, 127)),
    Case("opset-too-low", lambda: model(constants={"z": np.uint16(120)}, opset=17)),
    Case("scale-type", lambda: changed(s=np.float16(0.05))),
    Case("int32-zero-point", lambda: changed(bz=np.asarray([1, 0], np.int32))),
    Case(
        "contrib-domain",
        lambda: changed(("xq = Quant", "xq = com.microsoft.Quant"), ("xd = Deq", "xd = com.microsoft.Deq")),
    ),
    Case("saturate-off", _small_floats(0), _small_floats(1)),
    Case("half-precision-input", _half),
    Case("qoperator-form", qoperator),
    Case("dynamic-quantization", dynamic),
    Case("vendor-quantizers", _vendor),
    Case("pair-mismatch", lambda: changed((SECOND, "xd = DequantizeLinear(xq, s2, z)"), s2=F(0.04))),
    Case("quantize-unused", lambda: changed((SECOND, SECOND + " dead = QuantizeLinear(x, s, z)"))),
    Case("dequantize-unused", lambda: changed((SECOND, SECOND + " dead = DequantizeLinear(xq, s, z)"))),
    Case("codes-read", lambda: changed((SECOND, "xi = Transpose<perm=[0,1,3,2]>(xq) xd = DequantizeLinear(xi, s, z)"))),
    Case("codes-leave", lambda: model("y = QuantizeLinear(x, s, z)", outputs="uint8[1,2,4,4] y")),
    Case("dequantize-alone", lambda: changed((SECOND, "xi = Cast<to=2>(x) xd = DequantizeLinear(xi, s, z)"))),
    Case("codes-clip", _bounds(200, 100), _bounds(0, 127)),
    Case(
        "pair-repeated",
        lambda: changed(
            (SECOND, "xe = DequantizeLinear(xq, s, z) xf = QuantizeLinear(xe, s, z) xd = DequantizeLinear(xf, s, z)")
        ),
    ),
    Case(
        "pair-requantized",
        lambda: changed(
            (SECOND, "xe = DequantizeLinear(xq, s, z) xf = QuantizeLinear(xe, s2, z) xd = DequantizeLinear(xf, s2, z)"),
            s2=F(0.07),
        ),
    ),
    Case(
        "pair-duplicate",
        lambda: changed(
            (
                "t = Conv<pads=[1,1,1,1]>(xd, wd, bd)",
                "x2 = QuantizeLinear(x, s, z) x3 = DequantizeLinear(x2, s, z) t0 = Conv<pads=[1,1,1,1]>(xd, wd, bd) t = Add(t0, x3)",
            )
        ),
    ),
    Case(
        "tensor-two-grids",
        lambda: changed(
            (
                "t = Conv<pads=[1,1,1,1]>(xd, wd, bd)",
                "x2 = QuantizeLinear(x, s2, z) x3 = DequantizeLinear(x2, s2, z) t0 = Conv<pads=[1,1,1,1]>(xd, wd, bd) t = Add(t0, x3)",
            ),
            s2=F(0.1),
        ),
    ),
    Case("bias-scale", lambda: changed(bs=np.asarray([1e-3, 5e-4], F))),
    Case("bias-type", lambda: changed(b=np.asarray([10, -20], I8), bz=np.zeros(2, I8))),
    Case("bias-alone", lambda: changed(("Conv<pads=[1,1,1,1]>(xd,", "Conv<pads=[1,1,1,1]>(x,"))),
    Case("bias-overflow", _bias(1e9, 0.0), _bias(0.5, 0.0)),
    Case("bias-off-grid", _bias(0.12345, 0.2), _bias(0.5, 0.0)),
    Case("constant-clipped", _weight(_one)),
    Case("weight-saturated", _stored(np.where(WEIGHT > 0, 127, -128)), _stored(WEIGHT * 100)),
    Case("channel-vanished", _weight(_vanish)),
    Case("channel-dead", _weight(_kill)),
    Case("weight-asymmetric", lambda: changed(wz=np.asarray([3, -5], I8))),
    Case("weight-range-unused", lambda: changed(ws=np.asarray([0.5, 0.5], F))),
    Case(
        "weight-axis",
        lambda: changed(("QuantizeLinear<axis=0>(w,", "QuantizeLinear<axis=1>(w,"), ("<axis=0>(wq", "<axis=1>(wq")),
    ),
    Case("activation-per-channel", lambda: changed(s=np.asarray([0.05, 0.04], F), z=np.asarray([120, 120], U8))),
    Case(
        "weight-behind-node",
        lambda: changed(
            ("t = Conv<pads=[1,1,1,1]>(xd, wd", "wt = Transpose<perm=[1,0,2,3]>(wd) t = Conv<pads=[1,1,1,1]>(xd, wt")
        ),
    ),
    Case("half-quantized", lambda: changed(("(xd, wd, bd)", "(xd, w)"))),
    Case("branch-float", _branch(quantized=False), _branch(quantized=True)),
    Case("gemm-scalars", _gemm("<alpha=0.5>"), _gemm("<alpha=1.0>")),
    Case("batchnorm-unfolded", _batchnorm),
    Case("calibration-random", _random),
    Case("float-grid", _small_floats(1)),
    Case("activation-pair-untied", _inner(0.1), _inner(0.0625)),
    Case("activation-pair-superfluous", _inner(0.0625), _inner(0.0625, 10)),
    Case("activation-pair-tied", _inner(0.0625, 10), _inner(0.0625)),
    Case("moved-grid", _pooled(0.1), _pooled(0.05)),
    Case("concat-grids", _joined(0.1, 0.1), _joined(0.05, 0.05)),
    Case("concat-mixed-range", _joined(50.0, 50.0), _joined(0.1, 0.1)),
    Case("sum-swallows-input", _added(50.0, 50.0), _added(0.1, 0.1)),
    Case("mask-quantized", _masked(float(np.finfo(F).min)), _masked(1.0)),
    Case("parameter-quantized", _clipped(quantized=True), _clipped(quantized=False)),
    Case("index-quantized", _indexed(quantized=True), _indexed(quantized=False)),
    Case("normalization-interior", _normalized(inside=True), _normalized(inside=False)),
    Case("normalization-quantized", _layer_norm(quantized=True), _layer_norm(quantized=False)),
    Case("probability-quantized", _sigmoid("y = Identity(gd)", 1 / 255), _sigmoid("y = Mul(xd, gd)", 1 / 255)),
    Case("range-beyond-bounds", _sigmoid("y = Mul(xd, gd)", 0.01), _sigmoid("y = Mul(xd, gd)", 1 / 255)),
    Case("softmax-input-narrow", _softmax(15), _softmax(255)),
    Case("ranking-quantized", _topk(quantized=True), _topk(quantized=False)),
    Case(
        "scale-shared",
        lambda: changed(("rq = QuantizeLinear(r, rs", "rq = QuantizeLinear(r, s"), ("(rq, rs", "(rq, s")),
    ),
    Case(
        "codes-shared",
        lambda: changed(
            ("t = Conv", "be = DequantizeLinear<axis=0>(b, bs2, bz) t0 = Conv<pads=[1,1,1,1]>(xd, wd, be) t1 = Conv"),
            ("r = Relu(t)", "t = Add(t0, t1) r = Relu(t)"),
            bs2=np.asarray([1e-3, 1e-3], F),
        ),
    ),
    Case("scale-overridable", _overridable),
    Case("node-name-repeated", lambda: changed(("t = Conv", '["n"] t = Conv'), ("r = Relu", '["n"] r = Relu'))),
    Case("tensor-name-repeated", _bodies("u"), _bodies("v")),
)
