"""What paired answers show, against the binomial distribution and a published interval."""

import math

import numpy as np
import pytest

from onnxqat.metrics._paired import NORMAL, Answers, Paired, at_least, commonest, pair


def test_chances_of_a_fair_coin() -> None:
    assert at_least(8, 10, 0.5) == pytest.approx((45 + 10 + 1) / 1024)
    assert at_least(0, 10, 0.5) == 1.0
    assert at_least(11, 10, 0.5) == 0.0
    assert [at_least(1, 3, share) for share in (0.0, 1.0)] == [0.0, 1.0]
    assert at_least(30_000, 50_000, 0.5) < 1e-100


def test_the_bound_is_that_of_the_paper() -> None:
    """Tango, Statistics in Medicine 17 (1998): 44 pairs of which one differs, 90 % from -0.096 to 0.037."""
    assert Paired(44, 43, 0, 1, 0.1).most_lost == pytest.approx(0.0365, abs=1e-4)
    assert Paired(44, 43, 1, 0, 0.1).most_lost == pytest.approx(0.0957, abs=1e-4)
    for samples in (24, 100):  # where nothing differs, z² / (n + z²)
        assert Paired(samples, samples, 0, 0, 0.1).most_lost == pytest.approx(NORMAL**2 / (samples + NORMAL**2))
    assert Paired(4, 0, 4, 0, 0.1).most_lost == pytest.approx(1.0)
    assert Paired(0, 0, 0, 0, 1.0).most_lost == 1.0


def test_the_bound_falls_with_what_is_won() -> None:
    bounds = [Paired(24, 20, 2, won, 0.1).most_lost for won in range(10)]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[0] > 0.08 > 0 > bounds[-1]


def test_five_of_five_are_no_chance_and_four_are() -> None:
    assert (Paired(24, 20, 5, 0, 0.1).worse, Paired(24, 20, 4, 0, 0.1).worse) == (True, False)
    assert not Paired(24, 24, 0, 0, 0.1).worse


def test_answers_are_paired_sample_by_sample() -> None:
    labels = np.array([0, 0, 1, 2])
    original = Answers(np.array([True, True, False, False]), commonest(labels))
    quantized = Answers(np.array([True, False, True, True]), commonest(labels))
    assert pair(original, quantized) == Paired(samples=4, right=3, lost=1, won=2, commonest=0.5)


def test_a_constant_answer_tells_nothing() -> None:
    assert not Paired(50, 25, 0, 20, 0.5).tells
    assert Paired(50, 40, 0, 20, 0.5).tells
    assert not Paired(50, 50, 0, 20, commonest(np.zeros(50))).tells
    assert math.isclose(commonest(np.array([3, 3, 1])), 2 / 3)
