"""Fourier transforms, windows and the mel scale."""

import numpy as np
import onnx_ir as ir
import pytest
import torch
from onnx import TensorProto

from onnxqat.bridge.importing.importer import to_torch
from onnxqat.bridge.importing.values import TORCH_DTYPES
from tests.bridge import lowering_checks, one_node, parity
from tests.torch_releases import since_2_7

RANDOM = np.random.default_rng(0)
# onnxruntime transforms in float32, which shows where terms cancel.
FORMS = [(0, 0, 1), (0, 0, 2), (0, 1, 1), (1, 0, 1), (1, 0, 2), (1, 1, 2)]


def normal(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(("inverse", "onesided", "parts"), FORMS)
@pytest.mark.parametrize("length", [None, 5, 9, 8])
@pytest.mark.parametrize("axis", [None, 1, -3])
def test_dft_equals_the_reference(inverse, onesided, parts, length, axis) -> None:
    x, given = normal(2, 7, 8, parts), None if length is None else np.array(length)
    options = {"inverse": inverse, "onesided": onesided}
    old = one_node.make("DFT", {"x": x, "length": given}, opset=17, axis=axis, rank=4, **options)
    lowering_checks.equals_reference(old, {"x": x, "length": given})
    inputs = {"x": x, "length": given, "axis": None if axis is None else np.array(axis)}
    new = one_node.make("DFT", inputs, opset=20, rank=4, **options)
    lowering_checks.equals_reference(new, inputs)
    if not (inverse and onesided and length):  # onnxruntime reads other elements than the reference there
        parity.check(new, one_node.feeds(new, inputs))


def test_dft_of_half_floats_is_rounded_once() -> None:
    x = normal(2, 9, 1).astype(np.float16)
    model = one_node.make("DFT", {"x": x}, outputs={"y": TensorProto.FLOAT16}, opset=20, rank=3)
    found = parity.run_module(to_torch(model), {"x": x})[0]
    wanted = np.fft.fft(x[..., 0].astype(np.float64), axis=1)
    np.testing.assert_array_equal(found, np.stack([wanted.real, wanted.imag], -1).astype(np.float16))


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("framing", ["window", "length", "both"])
@pytest.mark.parametrize("step", [1, 3])
def test_stft_equals_onnxruntime(parts, framing, step) -> None:
    inputs = {
        "x": normal(2, 20, parts),
        "step": np.array(step),
        "window": normal(6) if framing != "length" else None,
        "length": np.array(6) if framing != "window" else None,
    }
    model = one_node.make("STFT", inputs, opset=17, onesided=int(parts == 1), rank=4)
    parity.check(model, one_node.feeds(model, inputs))


def test_transforms_have_gradients() -> None:
    for operator, inputs in (
        ("DFT", {"x": normal(2, 7, 2)}),
        ("STFT", {"x": normal(2, 20, 1), "step": np.array(3), "window": normal(6)}),
    ):
        model = one_node.make(operator, inputs, opset=17, rank=4 if operator == "STFT" else 3, onesided=0)
        for gradient in lowering_checks.gradients(model, inputs):
            assert torch.isfinite(gradient).all()
            assert gradient.abs().sum() > 0


@since_2_7
def test_transforms_export() -> None:
    for options in ({"onesided": 1}, {"inverse": 1}):
        parts = 1 if "onesided" in options else 2
        given, other = {"x": normal(3, 7, parts)}, {"x": normal(2, 12, parts)}
        lowering_checks.exports("DFT", given, {"x": (0, 1)}, other, opset=20, rank=3, **options)
    given = {"x": normal(3, 27, 1), "step": np.array(3), "window": normal(8)}
    other = given | {"x": normal(2, 40, 1)}
    constants = ("step", "window")
    lowering_checks.exports("STFT", given, {"x": (0, 1)}, other, opset=17, rank=4, constants=constants)


@pytest.mark.parametrize("kind", ["Blackman", "Hamming", "Hann"])
@pytest.mark.parametrize("periodic", [0, 1])
@pytest.mark.parametrize("constants", [(), ("size",)])
@pytest.mark.parametrize("dtype", [TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT32])
def test_windows_equal_the_reference(kind, periodic, constants, dtype) -> None:
    for size in (2, 9, 10):
        inputs = {"size": np.array(size)}
        options = {"periodic": periodic, "output_datatype": dtype, "constants": constants}
        model = one_node.make(f"{kind}Window", inputs, outputs={"y": dtype}, opset=17, rank=1, **options)
        lowering_checks.equals_reference(model, inputs)


def test_a_window_of_bfloat16() -> None:
    options = {"opset": 17, "rank": 1, "output_datatype": TensorProto.BFLOAT16, "constants": ("size",)}
    model = one_node.make("HannWindow", {"size": np.array(4)}, outputs={"y": TensorProto.BFLOAT16}, **options)
    window = to_torch(model)()
    assert window.dtype is TORCH_DTYPES[ir.DataType.BFLOAT16]
    assert window.tolist() == [0.0, 0.5, 1.0, 0.5]


@pytest.mark.parametrize("rate", [8000, 16000, 22050])
@pytest.mark.parametrize("length", [256, 400, 511])
@pytest.mark.parametrize("bins", [3, 20])
@pytest.mark.parametrize("constants", [(), ("bins", "length", "rate", "low", "high")])
def test_mel_weights_equal_onnxruntime(rate, length, bins, constants) -> None:
    inputs = {
        "bins": np.array(bins),
        "length": np.array(length),
        "rate": np.array(rate),
        "low": np.array(125, np.float32),
        "high": np.array(3800, np.float32),
    }
    model = one_node.make("MelWeightMatrix", inputs, opset=17, constants=constants, rank=2)
    parity.check(model, one_node.feeds(model, inputs))
