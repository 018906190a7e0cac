"""Accuracy counts what argmax says, batch by batch."""

import numpy as np
import pytest

from onnxqat.errors import DataError
from onnxqat.metrics._accuracy import AccuracyMeter, class_numbers


def test_batches_add_up_to_the_whole() -> None:
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(101, 10)).astype(np.float32), rng.integers(0, 10, 101)
    meter = AccuracyMeter()
    for start in range(0, 101, 7):
        meter.update(logits[start : start + 7], labels[start : start + 7])
    found = meter.result("float", "labels")
    assert found.samples == 101
    assert found.top1 == (logits.argmax(1) == labels).mean()
    five = np.argsort(-logits, axis=1, kind="stable")[:, :5]
    assert found.top5 == (five == labels[:, None]).any(1).mean()


def test_equal_logits_are_decided_as_by_argmax() -> None:
    logits = np.zeros((3, 6), np.float32)
    meter = AccuracyMeter()
    meter.update(logits, np.array([0, 1, 5]))
    found = meter.result("float", "labels")
    assert found.top1 == pytest.approx(1 / 3)
    assert found.top5 == pytest.approx(2 / 3)


def test_nan_is_never_right() -> None:
    meter = AccuracyMeter()
    meter.update(np.full((2, 6), np.nan, np.float32), np.array([0, 1]))
    assert meter.result("float", "labels").top5 == 0.0


def test_top5_needs_more_than_five_classes() -> None:
    meter = AccuracyMeter()
    meter.update(np.eye(5, dtype=np.float32), np.arange(5))
    assert meter.result("float", "labels").top5 is None


def test_labels_come_as_numbers_columns_or_scores() -> None:
    expected = np.array([2, 0])
    for labels in (expected, expected[:, None], np.eye(3)[expected], expected.astype(np.float32)):
        assert class_numbers(labels, 2, 3).tolist() == [2, 0]


@pytest.mark.parametrize(
    "labels", [np.array([0, 3]), np.array([-1, 0]), np.array([0.5, 1.0]), np.array([1]), np.array(["a", "b"])]
)
def test_labels_that_do_not_fit_are_refused(labels: np.ndarray) -> None:
    with pytest.raises(DataError) as caught:
        class_numbers(labels, 2, 3)
    assert caught.value.code == "data-labels"
