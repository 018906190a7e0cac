"""Choice of one option for each layer: least noise within a budget, for all budgets at once.

It is the multiple-choice knapsack problem (Sinha and Zoltners, "The Multiple-Choice Knapsack Problem", Operations
Research, 1979), solved by dynamic programming over the cost, which gives the whole Pareto front. Noises of layers are
added, as those of independent errors are (Zhou et al., "Adaptive Quantization for Deep Neural Network", AAAI 2018).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

LARGEST = 1 << 20
"""Steps of cost that are told apart. Costs with a larger sum, after division by what all share, are rounded up to so many
steps: no budget is exceeded, and what is lost is at most a millionth of the largest cost for each layer."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """One option for each layer.

    Attributes:
        options: number of the option, by layer.
        cost: their sum.
        noise: their sum.
    """

    options: tuple[int, ...]
    cost: int
    noise: float


class Front:
    """All choices that no other one beats in both cost and noise.

    Args:
        costs: of each option of each layer, whole numbers, at least 0.
        noises: the same, at least 0.
    """

    def __init__(self, costs: Sequence[Sequence[int]], noises: Sequence[Sequence[float]]) -> None:
        self._costs, self._noises = costs, noises
        least = [min(row) for row in costs]
        # What every choice costs is no part of the problem.
        extra = [[cost - low for cost in row] for row, low in zip(costs, least, strict=True)]
        self._least, total = sum(least), sum(max(row) for row in extra)
        shared = math.gcd(*(cost for row in extra for cost in row)) or 1
        self._step = max(shared, -(-total // LARGEST))
        self._steps = [[-(-cost // self._step) for cost in row] for row in extra]
        size = sum(max(row) for row in self._steps) + 1
        best = np.full(size, np.inf)
        best[0] = 0.0
        self._taken = np.zeros((len(costs), size), np.uint8)
        for layer, (steps, noise) in enumerate(zip(self._steps, noises, strict=True)):
            best = self._add(layer, steps, noise, best)
        improves = best < np.minimum.accumulate(np.concatenate([[np.inf], best[:-1]]))
        self._ends = np.flatnonzero(improves)

    def _add(self, layer: int, steps: Sequence[int], noises: Sequence[float], before: np.ndarray) -> np.ndarray:
        best = np.full(before.size, np.inf)
        for option, (step, noise) in enumerate(zip(steps, noises, strict=True)):
            moved = np.full(before.size, np.inf)
            moved[step:] = before[: before.size - step] + noise
            better = moved < best
            best[better] = moved[better]
            self._taken[layer, better] = option
        return best

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, number: int) -> Choice:
        """The choice of this number; cost rises and noise falls with it."""
        left, options = int(self._ends[number]), list[int]()
        for layer in reversed(range(len(self._steps))):
            options.append(int(self._taken[layer, left]))
            left -= self._steps[layer][options[-1]]
        chosen = tuple(reversed(options))
        cost = sum(row[option] for row, option in zip(self._costs, chosen, strict=True))
        return Choice(chosen, cost, sum(row[option] for row, option in zip(self._noises, chosen, strict=True)))

    def noise(self, options: Sequence[int]) -> float:
        """Noise of a choice, on the front or not."""
        return sum(row[option] for row, option in zip(self._noises, options, strict=True))

    def within(self, budget: float) -> int | None:
        """Number of the choice of least noise that costs at most `budget`; None where every choice costs more."""
        found = np.flatnonzero(self._ends * self._step + self._least <= budget)
        return int(found[-1]) if found.size else None

    def below(self, noise: float) -> int | None:
        """Number of the cheapest choice with at most that `noise`; None where none has so little."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self[middle].noise <= noise else (middle + 1, high)
        return low if low < len(self) else None

    def sample(self, count: int) -> list[int]:
        """At most `count` numbers, evenly spread over the costs, both ends among them."""
        places = np.linspace(self._ends[0], self._ends[-1], count)
        numbers = np.clip(np.searchsorted(self._ends, places), 0, len(self) - 1)
        return sorted({int(number) for number in numbers})
