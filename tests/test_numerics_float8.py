"""Small float grids against onnxruntime, bit for bit."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from onnxqat import numerics
from onnxqat.types import FLOAT_STORAGE, FloatArray, QParams, QType, Scheme

TEXT = """<ir_version: 9, opset_import: ["" : 19]> g (float[N] x) => (float[N] y) {
    q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }"""
STORAGES = [name for name in FLOAT_STORAGE if name.startswith("float8")]


def in_onnxruntime(x: FloatArray, storage: str, scale: float) -> FloatArray:
    model = onnx.parser.parse_model(TEXT)
    dtype = getattr(onnx.TensorProto, storage.upper())
    model.graph.initializer.append(onnx.helper.make_tensor("s", onnx.TensorProto.FLOAT, [], [scale]))
    model.graph.initializer.append(onnx.helper.make_tensor("z", dtype, [], [0.0]))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


def hard_values(storage: str) -> FloatArray:
    """Every value of the type, the middle of each two neighbours and what is just beside it, and what saturates."""
    codes = np.arange(256, dtype=np.uint8).view(ir.DataType[storage.upper()].numpy()).astype(np.float32)
    values = np.unique(codes[np.isfinite(codes)])
    halves = ((values[1:].astype(np.float64) + values[:-1]) / 2).astype(np.float32)
    beside = [np.nextafter(halves, np.float32(end)) for end in (-np.inf, np.inf)]
    beyond = np.float32([1, 1.02, 1.2, 2, 1e30]) * np.float32(FLOAT_STORAGE[storage])
    return np.concatenate([values, halves, *beside, beyond, -beyond, np.float32([np.inf, -np.inf, -0.0])])


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("scale", [1.0, 0.125, 0.037])
def test_quantize_and_back(storage: str, scale: float) -> None:
    largest = FLOAT_STORAGE[storage]
    qparams = QParams(np.float32(scale), np.int64(0), QType(storage, -largest, largest))
    x = np.asarray(hard_values(storage) * np.float32(scale), np.float32)
    np.testing.assert_array_equal(numerics.fake_quantize(x, qparams), in_onnxruntime(x, storage, scale))


@pytest.mark.parametrize("storage", STORAGES)
def test_the_largest_magnitude_gets_the_largest_value(storage: str) -> None:
    largest = FLOAT_STORAGE[storage]
    qtype = QType(storage, -largest, largest)
    found = numerics.from_range(np.float32(-3), np.float32(2), Scheme(qtype))
    assert float(found.scale) == np.float32(3 / largest)
    assert not found.zero_point.any()
    assert numerics.fake_quantize(np.float32([-3]), found)[0] == pytest.approx(-3, rel=1e-6)
