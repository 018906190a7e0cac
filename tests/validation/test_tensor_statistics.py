"""Statistics of what a quantizer rounds, against the same written out over all values at once."""

import math

import numpy as np
import pytest

from onnxqat.types import QParams, QType
from onnxqat.validation.tensor_statistics import BINS, PERCENTILES, StatisticsMeter, TensorStatistics


def parameters(
    scale: float | list[float], zero_point: int = 0, axis: int | None = None, storage: str = "int8"
) -> QParams:
    low, high = {"int8": (-128, 127), "uint8": (0, 255), "int32": (-(2**31), 2**31 - 1)}[storage]
    scales = np.asarray(scale, np.float32)
    return QParams(scales, np.full(scales.shape, zero_point, np.int64), QType(storage, low, high), axis)


def statistics(batches: list[np.ndarray], qparams: QParams, *, is_weight: bool = False) -> TensorStatistics:
    meter = StatisticsMeter(qparams, is_weight=is_weight)
    for batch in batches:
        meter.update(batch)
    found = meter.result()
    assert found is not None
    return found


def test_against_all_values_at_once() -> None:
    rng = np.random.default_rng(0)
    small, large = rng.normal(size=(4, 3, 5, 5)), rng.normal(size=(4, 3, 5, 5)) * 9  # the range grows
    batches = [small.astype(np.float32), large.astype(np.float32)]
    found = statistics(batches, parameters(0.1))
    values = np.concatenate(batches)
    assert (found.low, found.high, found.values) == (values.min(), values.max(), values.size)
    steps = np.rint(values / np.float32(0.1))
    assert found.saturated == pytest.approx(((steps < -128) | (steps > 127)).mean())
    assert found.unused_codes == 256 - np.unique(np.clip(steps, -128, 127)).size
    for share in PERCENTILES:
        # Between the values on both sides, and a fine bin of slack.
        below, above = (np.quantile(values, share / 100, method=m) for m in ("lower", "higher"))
        assert below - 0.02 <= found.percentiles[f"{share:g}"] <= above + 0.02
    expected = np.histogram(values, BINS, (found.low, found.high))[0]
    assert sum(found.histogram) == values.size
    # A fine bin at an edge may go to either side of it.
    assert np.abs(np.cumsum(found.histogram) - np.cumsum(expected)).max() <= 2


def test_the_cut_into_batches_does_not_matter() -> None:
    values = np.random.default_rng(1).normal(size=(8, 4)).astype(np.float32)
    assert statistics([values], parameters(0.05)) == statistics(list(values.reshape(4, 2, 4)), parameters(0.05))


def test_dead_channels_are_zero_in_every_sample() -> None:
    maps = np.zeros((2, 3, 2, 2), np.float32)
    maps[1, 0, 0, 0] = 1.0
    found = statistics([maps[:1], maps[1:]], parameters(1.0))
    assert (found.channels, found.dead_channels) == (3, 2)
    assert statistics([maps], parameters(1.0), is_weight=True).channels == 2
    rows = np.eye(3, dtype=np.float32)[:, :2]
    assert statistics([rows], parameters([1.0, 1.0, 1.0], axis=0), is_weight=True).dead_channels == 1


def test_grids_that_have_no_codes_to_count() -> None:
    bias = statistics([np.ones(3, np.float32)], parameters(1e-3, storage="int32"))
    assert (bias.codes, bias.unused_codes) == (None, None)
    assert sum(bias.histogram) == 3
    floats = QParams(np.float32(1), np.int64(0), QType("float8e4m3fn", -448, 448))
    found = statistics([np.array([1.0, 500.0], np.float32)], floats)
    assert (found.codes, found.saturated) == (None, 0.5)


def test_values_that_are_not_finite_are_left_out() -> None:
    found = statistics([np.array([np.nan, np.inf, 1.0], np.float32)], parameters(1.0))
    assert (found.low, found.high, found.values, found.saturated) == (1.0, 1.0, 1, 0.0)
    assert StatisticsMeter(parameters(1.0), is_weight=False).result() is None


def test_a_large_tensor_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.linspace(-300, 300, 101, dtype=np.float32)
    whole = statistics([values], parameters(2.0))
    monkeypatch.setattr("onnxqat.validation.tensor_statistics._CHUNK", 7)
    assert statistics([values], parameters(2.0)) == whole
    assert math.isclose(whole.saturated, float((np.abs(np.rint(values / 2) + 0.5) > 128).mean()))


def test_a_scalar_is_one_value() -> None:
    found = statistics([np.asarray(0.5, np.float32)], parameters(0.25))
    assert (found.values, found.low, found.channels, found.unused_codes) == (1, 0.5, 1, 255)
