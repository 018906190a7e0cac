"""For each rule of a target a file that has the defect, and one that has not."""

import dataclasses
from collections.abc import Callable

import numpy as np
import onnx

from tests.linting.qdq_files import SOUND, changed, model

Make = Callable[[], onnx.ModelProto]
F, I8, U8 = np.float32, np.int8, np.uint8
OLD = "schema: 1\nbackend: old\nextends: onnxruntime-cpu\nopset: [13, 19]\n"
LIMITED = """schema: 1
backend: limited
extends: onnxruntime-cpu
limits:
  - {op: Selu, outcome: refused, form: float, why: "no such operator"}
  - {op: Erf, outcome: cpu, why: "no kernel"}
"""
SHIFTS = """schema: 1
backend: shifter
extends: onnxruntime-cpu
types: {act: {scale: pow2, scale_bits: null}, wt: {scale: pow2, scale_bits: null, granularity: tensor}}
checks: [{op: Conv, shift: in0 + in1 - out, range: [0, 8]}]
"""


@dataclasses.dataclass(frozen=True)
class TargetCase:
    """One rule: the backend (a name or a table's text), a file with its defect, one without it."""

    code: str
    backend: str
    bad: Make
    good: Make = model


TENSORRT = """
    xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z)
    wq = QuantizeLinear<axis=0>(w, ws, wz) wd = DequantizeLinear<axis=0>(wq, ws, wz)
    t = Conv<pads=[1,1,1,1]>(xd, wd, fb) y = Relu(t)"""
SIGNED = {"z": I8(0), "fb": np.asarray([0.5, -0.25], F)}


def _signed(*replacements: tuple[str, str], outputs: str = "float[1,2,4,4] y", **constants: object) -> Make:
    """What TensorRT wants of a convolution, with parts replaced."""
    body = TENSORRT
    for old, new in replacements:
        assert old in body, old
        body = body.replace(old, new)
    values = {**SIGNED, **{name: np.asarray(value) for name, value in constants.items()}}
    return lambda: model(body, values, outputs=outputs)


def _float(body: str, opset: int = 17, **constants: object) -> Make:
    values = {name: np.asarray(value) for name, value in constants.items()}
    return lambda: model(body, values, opset=opset)


def _pool(count: int) -> Make:
    body = f"""xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z)
    p = AveragePool<kernel_shape=[3,3], pads=[1,1,1,1], count_include_pad={count}>(xd)
    pq = QuantizeLinear(p, s, z) y = DequantizeLinear(pq, s, z)"""
    return lambda: model(body)


def _sigmoid(scale: float) -> Make:
    body = """xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z) g = Sigmoid(xd)
    gq = QuantizeLinear(g, gs, gz) gd = DequantizeLinear(gq, gs, gz) m = Mul(xd, gd)
    mq = QuantizeLinear(m, s, z) y = DequantizeLinear(mq, s, z)"""
    return lambda: model(body, {"gs": F(scale), "gz": U8(0)})


def _concat(scale: float) -> Make:
    body = """xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z)
    uq = QuantizeLinear(u, us, z) ud = DequantizeLinear(uq, us, z) c = Concat<axis=1>(xd, ud)
    cq = QuantizeLinear(c, s, z) y = DequantizeLinear(cq, s, z)"""
    inputs = "float[1,2,4,4] x, float[1,2,4,4] u"
    return lambda: model(body, {"us": F(scale)}, inputs=inputs, outputs="float[1,4,4,4] y")


def _powers(weight: float, out: float = 0.0625, act: float = 0.0625) -> Make:
    body = SOUND.replace("<axis=0>(w", "(w")
    scales = {"s": F(act), "ws": F(weight), "wz": I8(0), "rs": F(out), "bs": np.full(2, F(act) * F(weight), F)}
    return lambda: model(body, scales)


def _useless(*, quantized: bool) -> Make:
    pair = "hq = QuantizeLinear(h, rs, z) hd = DequantizeLinear(hq, rs, z)" if quantized else "hd = Identity(h)"
    body = f"{SOUND.replace(' y = Deq', ' v = Deq')} h = Softplus(v) {pair} y = Tanh(hd)"
    return lambda: model(body)


INSIDE = ("r = Relu(t)", "tq = QuantizeLinear(t, rs, rz) td = DequantizeLinear(tq, rs, rz) r = Relu(td)")
NO_PAIR = ("rq = QuantizeLinear(r, rs, rz) y = DequantizeLinear(rq, rs, rz)", "y = Identity(r)")
ORT, OPENVINO, RTX = "onnxruntime-cpu", "openvino-cpu", "tensorrt"

TARGET = (
    TargetCase(
        "target-refused",
        ORT,
        _float('y = Upsample<mode="nearest", height_scale=1.0, width_scale=1.0>(x)', 1),
        _float("y = Relu(x)"),
    ),
    TargetCase("target-opset", OLD, model, lambda: model(opset=19)),
    TargetCase("target-operator-float", ORT, _float("y = Celu(x)"), _float("y = Add(x, x)")),
    TargetCase(
        "target-remark",
        ORT,
        _float("k = GlobalMaxPool(x) n = Reshape(k, flat) y = Conv<pads=[1,1,1,1]>(x, w, n)", flat=np.asarray([2])),
        _float("y = Conv<pads=[1,1,1,1]>(x, w, b0)", b0=np.ones(2, F)),
    ),
    TargetCase("target-compiler-stops", LIMITED, _float("y = Selu(x)"), _float("y = Elu(x)")),
    TargetCase("target-node-on-cpu", LIMITED, _float("y = Erf(x)"), _float("y = Tanh(x)")),
    TargetCase("target-attribute", OPENVINO, _pool(1), _pool(0)),
    TargetCase("target-shift", SHIFTS, _powers(2.0**-1, 2.0**-14), _powers(2.0**-6)),
    TargetCase("target-activation-type", RTX, model, _signed()),
    TargetCase(
        "target-weight-type",
        ORT,
        lambda: changed(wz=np.full(2, 128, U8)),
    ),
    TargetCase("target-zero-point", RTX, _signed(z=I8(3)), _signed()),
    TargetCase("target-granularity", ORT, lambda: changed(s=np.asarray([0.05, 0.05], F), z=np.asarray([120, 120], U8))),
    TargetCase("target-width", ORT, lambda: changed(ws=np.asarray([0.001, 0.001], F))),
    TargetCase("target-power-of-two", SHIFTS, _powers(0.01), _powers(2.0**-6)),
    TargetCase("target-fixed", ORT, _sigmoid(0.01), _sigmoid(1 / 255)),
    TargetCase("target-pair-missing", ORT, lambda: changed(NO_PAIR)),
    TargetCase("target-pair-in-fusion", OPENVINO, lambda: changed(INSIDE)),
    TargetCase(
        "target-interface",
        RTX,
        _signed(("y = Relu(t)", "r = Relu(t) rq = QuantizeLinear(r, s, z) y = DequantizeLinear(rq, s, z)")),
        _signed(),
    ),
    TargetCase("target-pair-useless", ORT, _useless(quantized=True), _useless(quantized=False)),
    TargetCase(
        "target-activation-untied",
        ORT,
        lambda: changed((INSIDE[0], INSIDE[1].replace("rs, rz", "s, rz"))),
        lambda: changed(INSIDE),
    ),
    TargetCase("target-activation-not-fused", ORT, lambda: changed(rz=U8(10))),
    TargetCase(
        "target-bias-type",
        RTX,
        _signed(("t = Conv", "bd = DequantizeLinear<axis=0>(b, bs, bz) t = Conv"), ("fb)", "bd)")),
        _signed(),
    ),
    TargetCase("target-tie", OPENVINO, _concat(0.1), _concat(0.05)),
)
