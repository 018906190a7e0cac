"""The choice of options against all combinations, written out."""

import itertools

import numpy as np
import pytest

from onnxqat.bit_allocation import solver
from onnxqat.bit_allocation.solver import Front


def problem(seed: int, layers: int = 5, options: int = 4) -> tuple[list[list[int]], list[list[float]]]:
    """Costs that rise with noises that fall, as widths have them; sizes differ by orders of magnitude."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 2000, layers)
    costs = [[int(size * width) for width in sorted(rng.choice(np.arange(2, 17), options, False))] for size in sizes]
    noises = [sorted(rng.random(options) * rng.random(), reverse=True) for _ in range(layers)]
    return costs, [[float(noise) for noise in row] for row in noises]


def every_choice(costs: list[list[int]], noises: list[list[float]]) -> list[tuple[int, float]]:
    places = itertools.product(*(range(len(row)) for row in costs))
    return [
        (sum(c[i] for c, i in zip(costs, p, strict=True)), sum(n[i] for n, i in zip(noises, p, strict=True)))
        for p in places
    ]


@pytest.mark.parametrize("seed", range(4))
def test_the_front_is_that_of_all_combinations(seed: int) -> None:
    costs, noises = problem(seed)
    best, expected = np.inf, []
    for cost, noise in sorted(every_choice(costs, noises)):
        if noise < best - 1e-12:
            best = noise
            expected.append((cost, noise))
    front = Front(costs, noises)
    found = [(choice.cost, choice.noise) for choice in map(front.__getitem__, range(len(front)))]
    assert [cost for cost, _ in found] == [cost for cost, _ in expected]
    assert [noise for _, noise in found] == pytest.approx([noise for _, noise in expected])
    rising, falling = np.diff([c for c, _ in found]), np.diff([n for _, n in found])
    assert (rising > 0).all()
    assert (falling < 0).all()


def test_budgets_and_limits() -> None:
    costs, noises = problem(7)
    choices, front = every_choice(costs, noises), Front(costs, noises)
    least, most = front[0].cost, front[len(front) - 1].cost
    for budget in np.linspace(least, most, 9):
        number = front.within(budget)
        assert number is not None
        assert front[number].noise == pytest.approx(min(noise for cost, noise in choices if cost <= budget))
    assert front.within(least - 1) is None
    for limit in np.linspace(front[len(front) - 1].noise, front[0].noise, 9) + 1e-9:
        number = front.below(limit)
        assert number is not None
        assert front[number].cost == min(cost for cost, noise in choices if noise <= limit)
    assert front.below(-1.0) is None


def test_a_sample_has_both_ends() -> None:
    front = Front(*problem(3))
    numbers = front.sample(5)
    assert (numbers[0], numbers[-1]) == (0, len(front) - 1)
    assert len(numbers) <= 5
    assert numbers == sorted(set(numbers))


def test_costs_beyond_the_table_keep_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    costs, noises = problem(1)
    exact = Front(costs, noises)
    monkeypatch.setattr(solver, "LARGEST", 200)
    coarse = Front(costs, noises)
    for budget in np.linspace(exact[0].cost * 1.2, exact[len(exact) - 1].cost, 7):
        number = coarse.within(budget)
        assert number is not None
        assert coarse[number].cost <= budget
        # Each layer loses less than one of 200 steps of the largest cost.
        smaller = exact.within(budget - 5 * sum(max(row) for row in costs) / 200)
        assert smaller is None or coarse[number].noise <= exact[smaller].noise + 1e-12


def test_one_option_and_no_cost() -> None:
    front = Front([[3], [0, 0]], [[0.5], [0.2, 0.1]])
    assert len(front) == 1
    assert front[0] == solver.Choice((0, 1), 3, 0.6)
