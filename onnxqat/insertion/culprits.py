"""The quantizers that cost an output its accuracy, found by the noise that groups of them bring alone."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

Unit = tuple[int, ...]
"""Numbers of the placements that are one quantizer: those of a tie group, or of one tensor."""

EVEN = 0.5
"""Share of the expectation that all units have alike, since the noise of a tensor itself says little of its effect."""

ADDS_UP = 0.5
"""A half with up to this share of a group's noise leaves the difference to the other half. Above it the difference says
nothing: errors of neighbours cancel in part, and an output does not follow them for long."""


class Search:
    """Bisection of groups of quantizers, the noisiest first.

    A group is split where both halves are expected to bring the same noise, so that what is suspicious from the start
    is reached in few runs: with the share p of the expectation, in about ``log2(1 / p)``.

    Args:
        units: the quantizers.
        expected: noise that each of them is expected to bring, in any unit.
        noise: what a set of units brings alone to the worst of the outputs in question; 1 is what the floor allows.
        least: units that bring less are of no interest.
    """

    def __init__(
        self,
        units: Sequence[Unit],
        expected: Mapping[Unit, float],
        noise: Callable[[Sequence[Unit]], float],
        least: float,
    ) -> None:
        known = [min(expected.get(u, 0.0), 1.0) for u in units]
        total = sum(known)
        self._weights = {
            unit: EVEN / len(units) + (1 - EVEN) * (value / total if total else 1 / len(units))
            for unit, value in zip(units, known, strict=True)
        }
        self._noise, self._least = noise, least
        order = sorted(units, key=lambda unit: (-self._weights[unit], unit))
        self._queue: list[tuple[float, Unit, list[Unit], bool]] = []
        if order:
            self._push(order, math.inf, measured=False)

    def more(self, may_measure: Callable[[], bool]) -> Iterator[tuple[Unit, float]]:
        """Units that bring at least `least`, each with its noise, the noisiest first as far as sums are right.

        Args:
            may_measure: whether another two measurements are affordable; the search goes on where it stopped.
        """
        while self._queue and may_measure():
            negative, _, group, measured = heapq.heappop(self._queue)
            if len(group) > 1:
                self._split(group, -negative)
            elif measured:
                yield group[0], -negative
            else:
                self._push(group, self._noise(group), measured=True)

    @property
    def rest(self) -> float:
        """Noise of all that was not looked into, the sum of its groups."""
        return -sum(entry[0] for entry in self._queue)

    @property
    def ended(self) -> bool:
        """True if the queue of suspects is empty."""
        return not self._queue

    def _push(self, group: list[Unit], noise: float, *, measured: bool) -> None:
        if noise >= self._least:
            heapq.heappush(self._queue, (-noise, group[0], group, measured))

    def _split(self, group: list[Unit], noise: float) -> None:
        """Queue both halves of `group`; the noise of the second is measured where it does not follow from the first."""
        cut = _half([self._weights[unit] for unit in group])
        first, second = group[:cut], group[cut:]
        of_first = self._noise(first)
        self._push(first, of_first, measured=True)
        adds_up = of_first <= ADDS_UP * noise < math.inf
        self._push(second, noise - of_first if adds_up else self._noise(second), measured=not adds_up)


def _half(weights: Sequence[float]) -> int:
    """Number of leading `weights` whose sum comes closest to half of the total; at least 1, and not all."""
    total, best, cut = 0.0, math.inf, 1
    for number, weight in enumerate(weights[:-1], start=1):
        total += weight
        apart = abs(sum(weights) / 2 - total)
        if apart < best:
            best, cut = apart, number
    return cut
