"""Parameters of constant tensors."""

import dataclasses

import numpy as np
import pytest

from onnxqat import numerics
from onnxqat.calibration import observers
from onnxqat.calibration import weights as weights_module
from onnxqat.calibration.observers import create
from onnxqat.calibration.observers._base import NonFiniteError
from onnxqat.calibration.weights import weight_qparams
from onnxqat.discover import names
from onnxqat.errors import UsageError
from onnxqat.types import QType, Scheme, TensorSpec


def spec(name: str, bits: int = 4, axis: int | None = 0) -> TensorSpec:
    granularity = "tensor" if axis is None else "channel"
    return TensorSpec(QType.of(bits, signed=True), granularity=granularity, axis=axis, observer=name, role="weight")


@pytest.fixture(scope="module")
def weights() -> np.ndarray:
    values = np.random.default_rng(0).standard_normal((8, 16, 3, 3)).astype(np.float32)
    values[2] = 0
    values[3, 0, 0, 0] = 6
    return values * np.geomspace(0.01, 3, 8, dtype=np.float32).reshape(8, 1, 1, 1)


def channel_errors(values: np.ndarray, tensor_spec: TensorSpec) -> np.ndarray:
    error = numerics.fake_quantize(values, weight_qparams(values, tensor_spec)) - values
    return (error.reshape(len(values), -1) ** 2).sum(axis=1)


@pytest.mark.parametrize("name", names(observers.__name__))
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_shapes_and_dead_channel(name: str, axis: int | None, weights: np.ndarray) -> None:
    qparams = weight_qparams(weights, spec(name, axis=axis))
    assert qparams.scale.shape == (() if axis is None else (weights.shape[axis],))
    if axis == 0:
        assert qparams.scale[2] == 1
        assert qparams.zero_point[2] == 0


def test_minmax_is_the_observer(weights: np.ndarray) -> None:
    observer = create(spec("minmax"))
    observer.update(weights)
    assert observer.qparams().same(weight_qparams(weights, spec("minmax")))


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_mse_is_never_worse_in_any_channel(bits: int, weights: np.ndarray) -> None:
    whole, best = channel_errors(weights, spec("minmax", bits)), channel_errors(weights, spec("mse", bits))
    assert (best <= whole * (1 + 1e-6)).all()
    if bits < 8:
        assert best[3] < 0.8 * whole[3]


def test_direct_and_histogram_search_agree() -> None:
    values = np.random.default_rng(1).standard_normal((2, 8192)).astype(np.float32)
    direct = weight_qparams(values, spec("mse"))
    doubled = weight_qparams(np.concatenate([values, values], axis=1), spec("mse"))
    np.testing.assert_allclose(direct.scale, doubled.scale, rtol=0.03)


@pytest.mark.parametrize("name", names(observers.__name__))
def test_blocks_of_channels_change_nothing(name: str, weights: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = [weight_qparams(weights, spec(name, axis=axis)) for axis in (0, 1, None)]
    monkeypatch.setattr(weights_module, "_CHANNELS", 3)
    assert all(q.same(weight_qparams(weights, spec(name, axis=q.axis))) for q in whole)


@pytest.mark.parametrize("name", names(observers.__name__))
def test_empty(name: str) -> None:
    assert weight_qparams(np.zeros((0, 3), np.float32), spec(name, axis=1)).scale.tolist() == [1, 1, 1]
    assert weight_qparams(np.zeros((3, 0), np.float32), spec(name, axis=1)).scale.shape == (0,)
    assert weight_qparams(np.zeros(0, np.float32), spec(name, axis=None)).scale == 1


def test_entropy_of_small_channels_is_mse(weights: np.ndarray) -> None:
    assert weight_qparams(weights, spec("entropy")).same(weight_qparams(weights, spec("mse")))


def test_refusals(weights: np.ndarray) -> None:
    with pytest.raises(UsageError, match="no observer named 'msee'"):
        weight_qparams(weights, spec("msee"))
    for name in ("mse", "minmax"):
        with pytest.raises(NonFiniteError):
            weight_qparams(np.array([[np.nan]], np.float32), spec(name))
        with pytest.raises(ValueError, match="floating point"):
            weight_qparams(np.array([[1]]), spec(name))


@pytest.mark.parametrize("axis", [None, 1])
def test_a_short_scale_is_rounded_to_the_side_with_the_smaller_error(axis: int | None) -> None:
    rng = np.random.default_rng(0)
    values = rng.standard_normal((500, 12)).astype(np.float32) * np.linspace(0.5, 1.0, 12, dtype=np.float32)
    spec = TensorSpec(
        QType.of(8, signed=True),
        granularity="tensor" if axis is None else "channel",
        axis=axis,
        scale_bits=2,
        role="weight",
    )
    found = weight_qparams(values, spec)
    for factor in (2 / 3, 3 / 4, 4 / 3, 3 / 2):  # the neighbours of a scale of two significant bits
        other = dataclasses.replace(found, scale=(found.scale * np.float32(factor)).astype(np.float32))
        error, worse = (
            np.square(numerics.fake_quantize(values, q).astype(np.float64) - values).sum(
                axis=None if axis is None else 0
            )
            for q in (found, other)
        )
        short = np.asarray(numerics.shorten(other.scale, 2)) == other.scale
        assert (error[short] <= worse[short]).all() if axis is not None else (not short or error <= worse)


@pytest.mark.parametrize("qtype", [QType("int8", -64, 63), QType("uint8", 0, 255)])
@pytest.mark.parametrize("size", [1.0, 1e38])
def test_errors_are_those_of_the_reference(qtype: QType, size: float, weights: np.ndarray) -> None:
    rows = (weights.reshape(len(weights), -1) / np.abs(weights).max() * size).astype(np.float32)
    found = numerics.from_range(
        rows.min(axis=1) / 8, rows.max(axis=1) / 8, Scheme(qtype, symmetric=True, axis=0, scale_bits=4)
    )
    reference = np.square(numerics.fake_quantize(rows, found).astype(np.float64) - rows).sum(axis=1)
    np.testing.assert_array_equal(weights_module._squared_errors(rows, found), reference)
