"""Variants of one convolution that real compilers refuse, run in float or compute wrongly: lint names each.

What each compiler does with them was measured; the table's rules and the general ones must find it in the file alone.
"""

import ml_dtypes
import numpy as np
import onnx
import pytest

from onnxqat.linting.lint import lint
from tests.linting.qdq_files import SOUND, WEIGHT, changed, model
from tests.linting.target_cases import INSIDE, NO_PAIR, _concat, _pool, _signed

F, I8, U8 = np.float32, np.int8, np.uint8
ORT, OPENVINO, QNN, RTX, RKNN = "onnxruntime-cpu", "openvino-cpu", "qnn-htp", "tensorrt", "rknn"
S8 = {"z": I8(0), "rz": I8(0)}
HALF_RANGE = {"z": U8(128), "rz": U8(128)}
TWO = np.asarray([0.05, 0.05], F), np.asarray([120, 120], U8)
AXIS_1 = (("QuantizeLinear<axis=0>(w,", "QuantizeLinear<axis=1>(w,"), ("<axis=0>(wq", "<axis=1>(wq"))
BARE_INPUT = ("xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z)", "xd = Identity(x)")


def relu6(scale: float) -> onnx.ModelProto:
    """A Clip(0, 6) whose pair reaches beyond 6 where the scale is no fraction of it."""
    return changed(("r = Relu(t)", "r = Clip(t, lo, hi)"), lo=F(0), hi=F(6), rs=F(scale))


def pooled() -> onnx.ModelProto:
    body = """xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z) m = MaxPool<kernel_shape=[2,2]>(xd)
    mq = QuantizeLinear(m, rs, z) y = DequantizeLinear(mq, rs, z)"""
    return model(body, outputs="float[1,2,3,3] y")


def added() -> onnx.ModelProto:
    body = """xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z) c = Add(xd, u)
    cq = QuantizeLinear(c, rs, z) y = DequantizeLinear(cq, rs, z)"""
    return model(body, inputs="float[1,2,4,4] x, float[1,2,4,4] u")


def small_weights() -> onnx.ModelProto:
    codes = (WEIGHT * 10).astype(ml_dtypes.int4)
    body = SOUND.replace("wq = QuantizeLinear<axis=0>(w, ws, wz)", "").replace("(wq, ws", "(wc, ws")
    return model(body, {"wc": codes, "wz": np.zeros(2, ml_dtypes.int4)})


VARIANTS = {
    "int8 symmetric activations": (ORT, lambda: changed(**S8), "target-activation-type"),
    "uint8 with zero point 128": (ORT, lambda: changed(**HALF_RANGE), "target-activation-not-fused"),
    "uint8 activations": (RTX, model, "target-activation-type"),
    "a zero point": (RTX, _signed(z=I8(5)), "target-zero-point"),
    "int32 bias": (RTX, _signed(("t = Conv", "bd = DequantizeLinear<axis=0>(b, bs, bz) t = Conv"), ("fb)", "bd)")), "target-bias-type"),
    "int32 bias, wrong scale": (ORT, lambda: changed(bs=np.asarray([1e-3, 5e-4], F)), "bias-scale"),
    "int8 bias": (ORT, lambda: changed(b=np.asarray([10, -20], I8), bz=np.zeros(2, I8)), "target-bias-type"),
    "weights along axis 1": (OPENVINO, lambda: changed(*AXIS_1), "weight-axis"),
    "uint8 weights": (OPENVINO, lambda: changed(wz=np.full(2, 128, U8)), "target-weight-type"),
    "asymmetric int8 weights": (QNN, lambda: changed(wz=np.asarray([3, -5], I8)), "target-zero-point"),
    "a pair inside, own scale": (QNN, lambda: changed((INSIDE[0], INSIDE[1].replace("rs, rz", "s, rz"))), "target-activation-untied"),
    "a pair inside what is fused": (OPENVINO, lambda: changed(INSIDE), "target-pair-in-fusion"),
    "no pair on the output": (QNN, lambda: changed(NO_PAIR), "target-pair-missing"),
    "no pair on the input": (RKNN, lambda: changed(BARE_INPUT), "target-pair-missing"),
    "residual branch without a pair": (ORT, added, "target-pair-missing"),
    "concat with unequal scales": (OPENVINO, _concat(0.1), "target-tie"),
    "power-of-two scale behind Clip(0, 6)": (ORT, lambda: relu6(2.0**-5), "target-activation-not-fused"),
    "int16 activations": (OPENVINO, lambda: changed(z=np.int16(0)), "target-activation-type"),
    "uint16 activations": (ORT, lambda: changed(z=np.uint16(0)), "target-activation-type"),
    "int4 weights": (ORT, small_weights, "target-weight-type"),
    "activation per channel": (QNN, lambda: changed(s=TWO[0], z=TWO[1]), "activation-per-channel"),
    "MaxPool with another scale behind": (ORT, pooled, "moved-grid"),
    "weights alone": (ORT, lambda: changed(BARE_INPUT), "half-quantized"),
    "activations alone": (ORT, lambda: changed(("(xd, wd, bd)", "(xd, w)")), "half-quantized"),
    "float8 activations": (ORT, lambda: changed(z=np.asarray(0, ml_dtypes.float8_e4m3fn)), "target-activation-type"),
    "padding that is counted": (OPENVINO, _pool(1), "target-attribute"),
    "8-bit weights without VNNI": (OPENVINO, lambda: changed(ws=np.asarray([0.001, 0.001], F)), "target-width"),
    "opset 21": (RKNN, model, "target-opset"),
}  # fmt: skip


@pytest.mark.parametrize("name", VARIANTS)
def test_variant_is_named(name: str) -> None:
    backend, make, code = VARIANTS[name]
    found = {finding.code for finding in lint(make(), backend).findings}
    assert code in found, found


@pytest.mark.parametrize("backend", [ORT, OPENVINO, QNN])
def test_what_runs_on_integers_everywhere_is_clean(backend: str) -> None:
    assert [f for f in lint(model(), backend).findings if f.severity != "note"] == []


def test_relu6_that_the_pair_repeats_is_clean() -> None:
    assert lint(relu6(6 / 255), ORT).findings == ()
