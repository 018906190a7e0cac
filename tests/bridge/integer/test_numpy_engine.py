"""Execution in numpy: the bits of torch's, on every unit."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import onnxqat
from onnxqat.bridge.integer import numpy_sums
from onnxqat.errors import UsageError
from tests.bridge.integer import networks

torch = pytest.importorskip("torch")


def same(model: onnx.ModelProto, x: np.ndarray, arithmetic: str) -> None:
    runs = [onnxqat.to_integer(model, arithmetic=arithmetic, engine=e) for e in ("torch", "numpy")]  # type: ignore[arg-type]
    first, second = (run.run({model.graph.input[0].name: x}) for run in runs)
    assert first.codes.keys() == second.codes.keys()
    for mine, theirs in ((first.codes, second.codes), (first.outputs, second.outputs)):
        for name, values in mine.items():
            np.testing.assert_array_equal(values, theirs[name])
    assert runs[0].sums() == runs[1].sums()


@pytest.mark.parametrize("arithmetic", ["onnxruntime", "fixed-point"])
def test_every_kind(arithmetic: str) -> None:
    model = networks.quantized(networks.kinds(), networks.images())
    same(model, networks.images(16, 9), arithmetic)


def test_shifts() -> None:
    same(networks.quantized(networks.kinds(), networks.images(), "vitis-dpu"), networks.images(4, 2), "shift")


def test_rows() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> rows (float[N, T, 12] x) => (float[N, T, 12] y)
    <float[12, 12] q, float[12, 12] k, float[12, 12] v, float[12, 12] o> {
        queries = MatMul(x, q) keys = MatMul(x, k) columns = Transpose <perm = [0, 2, 1]> (keys) values = MatMul(x, v)
        scores = MatMul(queries, columns) shares = Softmax(scores) mixed = MatMul(shares, values) y = MatMul(mixed, o) }"""
    x = np.random.default_rng(2).standard_normal((6, 9, 12)).astype(np.float32)
    model = networks.quantized(networks.with_weights(text), x)
    same(model, x, "onnxruntime")
    found = onnxqat.to_integer(model, engine="numpy").run({"x": x}).outputs["y"]
    np.testing.assert_array_equal(found, networks.session(model, x)[0])


@pytest.mark.parametrize(
    ("size", "settings"),
    [
        ((3, 2, 3, 2), ([2, 1], [1, 0], [1, 2], 3)),
        ((6, 6, 3, 3), (1, 2, 1, 1)),
        ((6, 1, 5), ([2], [2], [1], 6)),
        ((2, 6, 2, 2, 1), (1, 0, 1, 1)),
    ],
)
def test_convolutions(size: tuple[int, ...], settings: tuple[object, ...]) -> None:
    rng = np.random.default_rng(0)
    rank = len(size) - 2
    operation = (torch.conv1d, torch.conv2d, torch.conv3d)[rank - 1]
    x = rng.integers(-255, 256, (2, 6, *[9] * rank)).astype(np.float32)
    w = rng.integers(-127, 128, size).astype(np.float32)
    expected = operation(torch.from_numpy(x).double(), torch.from_numpy(w).double(), None, *settings)
    np.testing.assert_array_equal(numpy_sums.summed(operation, x, w, settings), expected.numpy())


def test_there_are_two_engines() -> None:
    with pytest.raises(UsageError, match="no engine 'jax'"):
        onnxqat.to_integer(networks.kinds(), engine="jax")  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_nan_of_a_float_operator_stays_nan() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> logarithms (float[N, 12] x) => (float[N, 12] y, float[N, 12] p)
    <float[12, 12] w> { l = Log(x) m = MatMul(l, w) r = Relu(l) s = Add(l, r) c = Sigmoid(m) d = Add(c, s) p = Softmax(d) y = Relu(m) }"""
    x = np.random.default_rng(2).uniform(0.5, 2, (6, 12)).astype(np.float32)
    model = networks.quantized(networks.with_weights(text), x)
    x[::2, 3] = -1.0
    same(model, x, "onnxruntime")
    found = onnxqat.to_integer(model, engine="numpy").run({"x": x}).outputs["y"]
    np.testing.assert_array_equal(np.isnan(found).any(1), x[:, 3] < 0)
