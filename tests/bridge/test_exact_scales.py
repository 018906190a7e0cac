"""Scales of ``--exact``: the same bits in torch, in onnxruntime as written and in its integer kernels."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

import onnxqat
from onnxqat.graph import io, qdq
from onnxqat.placement.table_overrides import Overrides


def outputs(path: Path, x: np.ndarray, *, optimize: bool) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {session.get_inputs()[0].name: x})[0])


def test_real_network_gives_the_same_bits_everywhere(shared: Path, tmp_path: Path) -> None:
    source = shared / "data" / "models" / "resnet20_cifar10_bn.onnx"
    x = np.random.default_rng(0).standard_normal((16, 3, 32, 32)).astype(np.float32)
    path = tmp_path / "exact.onnx"
    onnxqat.insert_qdq(source, "onnxruntime-cpu", data={"input": x[:4]}, output=path, overrides=Overrides(exact=True))
    reference = outputs(path, x, optimize=False)
    with torch.no_grad():
        bridge = onnxqat.to_torch(path)(torch.from_numpy(x)).numpy()
    np.testing.assert_array_equal(bridge, reference)
    np.testing.assert_array_equal(outputs(path, x, optimize=True), reference)


@pytest.mark.parametrize("backend", ["onnxruntime-cpu", "tensorrt", "openvino-cpu", "academic"])
def test_short_scales_give_the_same_bits_in_torch(backend: str, shared: Path, tmp_path: Path) -> None:
    source = shared / "data" / "models" / "resnet20_cifar10_bn.onnx"
    x = np.random.default_rng(0).standard_normal((16, 3, 32, 32)).astype(np.float32)
    path = tmp_path / "short.onnx"
    short = Overrides(scale_bits=(4, 2), reduce_range=True)
    onnxqat.insert_qdq(source, backend, data={"input": x[:4]}, output=path, overrides=short, fast=True)
    with torch.no_grad():
        bridge = onnxqat.to_torch(path)(torch.from_numpy(x)).numpy()
    np.testing.assert_array_equal(bridge, outputs(path, x, optimize=False))


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (Overrides(), {None}),
        (Overrides(scale_bits=(4, 2), reduce_range=True), {4, 2}),
        (Overrides(scale_bits=(4, 2), weight_bits=4, activation_bits=4), {6, 4}),
        (Overrides(scale_bits=(4, 2), activation_bits=16, reduce_range=True), {4, None}),
        (Overrides(scale_bits=(24, 24)), {24}),
    ],
)
def test_narrow_grids_leave_more_bits_to_the_scale(
    overrides: Overrides, expected: set[int | None], shared: Path
) -> None:
    source = shared / "data" / "models" / "resnet8_cifar10.onnx"
    x = np.random.default_rng(0).standard_normal((4, 3, 32, 32)).astype(np.float32)
    result = onnxqat.insert_qdq(io.load(source), "onnxruntime-cpu", data={"input": x}, overrides=overrides, fast=True)
    assert {q.qparams.scale_bits for q in qdq.quantizers(result.model) if q.role != "bias"} == expected


def test_scales_are_short_and_say_so(shared: Path, tmp_path: Path) -> None:
    source = shared / "data" / "models" / "resnet8_cifar10.onnx"
    x = np.random.default_rng(0).standard_normal((4, 3, 32, 32)).astype(np.float32)
    path = tmp_path / "exact.onnx"
    exact = Overrides(exact=True)
    onnxqat.insert_qdq(source, "onnxruntime-cpu", data={"input": x}, output=path, overrides=exact, fast=True)
    found = [q for q in qdq.quantizers(io.load(path)) if q.role != "bias"]
    assert {q.role for q in found} == {"activation", "weight"}
    for q in found:
        bits = 1 if q.role == "activation" else 5
        assert q.qparams.scale_bits == bits
        mantissa = np.frexp(q.qparams.scale.astype(np.float64))[0] * 2**bits
        np.testing.assert_array_equal(mantissa, np.rint(mantissa))
