"""Sums over batches equal those over the whole."""

import json
import math

import numpy as np
import pytest

from onnxqat.metrics._closeness import Difference
from onnxqat.validation.compare import OutputMeter, parts, plain


def test_signal_to_noise_over_batches() -> None:
    rng = np.random.default_rng(1)
    reference = rng.normal(size=(50, 4)).astype(np.float32)
    value = reference + rng.normal(size=(50, 4)).astype(np.float32) * np.float32(0.01)
    meter = Difference()
    for start in range(0, 50, 9):
        meter.update(value[start : start + 9], reference[start : start + 9])
    noise = (value.astype(np.float64) - reference) ** 2
    assert meter.sqnr_db == pytest.approx(10 * np.log10((reference.astype(np.float64) ** 2).sum() / noise.sum()))
    assert meter.max_abs == np.sqrt(noise.max())


def test_edges() -> None:
    meter = Difference()
    assert math.isnan(meter.sqnr_db)
    meter.update(np.ones(3), np.ones(3))
    assert meter.sqnr_db == math.inf
    meter.update(np.array([np.nan, np.inf, 1.0]), np.ones(3))
    assert (meter.non_finite, meter.sqnr_db) == (2, math.inf)
    silent = Difference()
    silent.update(np.ones(2), np.zeros(2))
    assert silent.sqnr_db == -math.inf


def test_top1_is_counted_for_classifiers_only() -> None:
    one, two = np.array([[0.0, 1.0], [3.0, 2.0]]), np.array([[0.0, 1.0], [1.0, 2.0]])
    for classifier, expected in ((True, 1), (False, None)):
        meter = OutputMeter(classifier)
        meter.update(one, two)
        found = meter.result("y", "torch", "ort-plain")
        assert (found.differing_top1, found.samples, found.max_abs) == (expected, 2, 2.0)


def test_parts_is_relative_to_the_largest_value() -> None:
    reference = np.array([100.0, 1.0])
    assert parts(reference, reference) == 0.0
    assert parts(np.array([100.0, 1.5]), reference) == pytest.approx(0.005)
    assert parts(np.array([100.0, np.nan]), reference) == math.inf
    assert parts(np.array([100.0]), reference) == math.inf


def test_plain_is_json() -> None:
    meter = Difference()
    meter.update(np.ones(2), np.ones(2))
    text = json.dumps(plain({"a": (meter.sqnr_db, np.float32(1), np.int64(2)), "b": None}), allow_nan=False)
    assert json.loads(text) == {"a": [None, 1.0, 2], "b": None}
