"""Answers that change, expected of few samples, against those of many."""

import re
from pathlib import Path

import numpy as np
import pytest

import onnxqat
from onnxqat.autotune import expected_answers
from tests.validation import tiny

HELD, KNOWN = 20, 100


@pytest.mark.parametrize("noise", [0.1, 0.4])
def test_few_samples_tell_what_many_show(noise: float) -> None:
    """Right in the mean of many drawings, and in each nearer than the answers of its held-out samples."""
    draw = np.random.default_rng(0)
    outputs = draw.normal(size=(20_000, 10)) * 3
    found = outputs + noise * draw.normal(size=outputs.shape)
    differing = found.argmax(1) != outputs.argmax(1)
    shown = 100 * float(differing.mean())
    expected, counted = [], []
    for _ in range(100):
        known = draw.choice(len(outputs), KNOWN, replace=False)
        held = known[:HELD]
        expected.append(expected_answers.changed(outputs[known], outputs[held], found[held]))
        counted.append(100 * float(differing[held].mean()))
    assert np.mean(expected) == pytest.approx(shown, rel=0.15)
    off = [float(np.sqrt(np.mean(np.square(np.array(each) - shown)))) for each in (expected, counted)]
    assert off[0] < off[1] / 1.5


def test_nothing_changes_without_errors() -> None:
    """Equal outputs change no answer, not even where two classes are equal."""
    outputs = np.array([[1, 1, 0], [0, 2, 1]], np.float32)
    assert expected_answers.changed(outputs, outputs, outputs) == 0


def test_a_class_that_all_errors_lift_wins_everywhere() -> None:
    """An error of 2 at the second place overtakes margins of 1 and not those of 3."""
    known = np.array([[1, 0], [0, 1], [3, 0], [0, 3]], np.float32)
    wanted = np.array([[3, 0], [0, 3]], np.float32)
    lifted = wanted + np.array([[0, 2], [2, 0]], np.float32)
    assert expected_answers.changed(known, wanted, lifted) == 50


def test_noise_of_a_classifier_is_told_in_answers(tmp_path: Path) -> None:
    """Eight held-out samples show no answer that changes; their errors at the margins of all samples tell how many will."""
    model = tiny.write(None)
    result = onnxqat.auto(model, data={"image": tiny.images(40)}, output=tmp_path, target_drop=100.0)
    assert result.measure == "noise"
    (said,) = [r.message for r in result.remarks if "another answer" in r.message]
    assert re.match(r"of 100 samples like these, about [\d.]+ would get another answer", said)
    assert "errors of 8 held-out samples" in said
