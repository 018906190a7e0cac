"""Filters of few inputs: a wider search than that of GPTQ, all filters at once."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from onnxqat.calibration import few_inputs
from onnxqat.calibration.gptq import Solver

GROUPS, FILTERS = 6, 3


def problem(inputs: int, groups: int = GROUPS) -> tuple[np.ndarray, ...]:
    """Moments of inputs that go together, weights, scales, and the ends of grids of 3 bits."""
    rng = np.random.default_rng(0)
    seen = rng.standard_normal((groups, 50, 2)) @ rng.standard_normal((groups, 2, inputs))
    seen += 0.3 * rng.standard_normal(seen.shape)
    rows = rng.standard_normal((groups, FILTERS, inputs))
    scale = np.broadcast_to(rng.uniform(0.3, 0.6, (groups, FILTERS, 1)), rows.shape)
    return seen.transpose(0, 2, 1) @ seen / 50, rows, scale, np.full(rows.shape, -4.0), np.full(rows.shape, 3.0)


def cost(second: np.ndarray, errors: np.ndarray) -> np.ndarray:
    return np.einsum("gmd,gde,gme->gm", errors, second, errors)


def test_codes_are_nearly_the_best_of_all() -> None:
    second, rows, scale, low, high = problem(4)
    codes, steps = few_inputs.chosen(second, rows, [scale], low, high)
    np.testing.assert_array_equal(steps, scale)
    every = np.array(list(itertools.product(range(-4, 4), repeat=4)), float)
    errors = rows[:, :, None] - every * scale[:, :, None]
    least = np.einsum("gmkd,gde,gmke->gmk", errors, second, errors).min(axis=2)
    found = cost(second, rows - codes * scale)
    assert (found < least + 1e-9).mean() > 0.8
    greedy = [Solver(second[g]).codes(rows[g], scale[g], low[g], high[g]) for g in range(GROUPS)]
    assert found.sum() < 0.97 * cost(second, rows - np.stack(greedy) * scale).sum()


@pytest.mark.parametrize("inputs", [1, 9, few_inputs.MOST])
def test_codes_are_whole_and_within_the_grid(inputs: int) -> None:
    second, rows, scale, low, high = problem(inputs)
    codes, _ = few_inputs.chosen(second, 3 * rows, [scale], low, high)
    np.testing.assert_array_equal(codes, np.rint(codes))
    assert codes.min() == -4
    assert codes.max() == 3


def test_each_filter_takes_the_scale_with_the_least_error() -> None:
    second, rows, scale, low, high = problem(9)
    scales = [scale, 0.8 * scale, 1.2 * scale]
    codes, steps = few_inputs.chosen(second, rows, scales, low, high)
    found = cost(second, rows - codes * steps)
    for one in scales:
        other, _ = few_inputs.chosen(second, rows, [one], low, high)
        assert (found <= cost(second, rows - other * one) + 1e-12).all()
    assert len(np.unique(np.round(steps / scale, 3))) > 1


def test_a_group_without_signal_is_no_obstacle() -> None:
    second, rows, scale, low, high = problem(9)
    second[0] = 0
    codes, _ = few_inputs.chosen(second, rows, [scale], low, high)
    np.testing.assert_array_equal(codes[0], np.clip(np.rint(rows[0] / scale[0]), -4, 3))


def test_recovery_is_that_of_each_group() -> None:
    second, rows, *_ = problem(9)
    cross = np.random.default_rng(1).standard_normal(second.shape)
    found = few_inputs.recovered(second, cross, rows)
    for group in range(GROUPS):
        own = rows[group] + rows[group] @ Solver(second[group]).recovery(cross[group])
        np.testing.assert_allclose(found[group], own, rtol=1e-9, atol=1e-9)
