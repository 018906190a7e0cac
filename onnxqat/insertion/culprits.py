"""The quantizers that cost an output its accuracy, found by the noise that they bring alone, in groups or one by one."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

Unit = tuple[int, ...]
"""Numbers of the placements that are one quantizer: those of a tie group, or of one tensor."""

EVEN = 0.5
"""Share of the expectation that all units have alike, since the noise of a tensor itself says little of its effect."""

DOUBT = 4.0
"""Factor by which the noise of a quantizer differs from what gradients expect, at most, but for few."""

ADDS_UP = 0.5
"""A half with up to this share of a group's noise leaves the difference to the other half. Above it the difference says
nothing: errors of neighbours cancel in part, and an output does not follow them for long."""


class Suspects(Protocol):
    """Quantizers that cost an output its accuracy, as they are found."""

    def more(self, may_measure: Callable[[], bool]) -> Iterator[tuple[Unit, float]]:
        """Units that bring at least what is of interest, each with its noise; the search goes on where it stopped.

        Args:
            may_measure: whether another two measurements are affordable.
        """

    @property
    def rest(self) -> float:
        """Noise of all that was not looked into."""

    @property
    def ended(self) -> bool:
        """True if nothing is left that is worth a look."""


class Ranked:
    """Measurements one by one, in an order that is known to be nearly right: that of gradients.

    Args:
        expected: noise that each unit is expected to bring, in any unit.
        noise: what a set of units brings alone to the worst of the outputs in question; 1 is what the floor allows.
        least: units that bring less are of no interest.
    """

    def __init__(self, expected: Mapping[Unit, float], noise: Callable[[Sequence[Unit]], float], least: float) -> None:
        self._noise, self._least, self._expected = noise, least, expected
        self._queue = sorted(expected, key=lambda unit: (-expected[unit], unit))
        self._seen = self._measured = 0.0

    def more(self, may_measure: Callable[[], bool]) -> Iterator[tuple[Unit, float]]:
        """Units that bring at least `least`, those first of which most is expected; see :class:`Suspects`."""
        while not self.ended and may_measure():
            unit = self._queue.pop(0)
            found = self._noise([unit])
            self._seen += self._expected[unit]
            self._measured += found
            if found >= self._least:
                yield unit, found

    @property
    def rest(self) -> float:
        """Noise expected of those that were not measured, in proportion to those that were."""
        return self._scaled(sum(self._expected[unit] for unit in self._queue))

    @property
    def ended(self) -> bool:
        """True if less is expected of the next than is of interest, by a factor that says that order is no measure."""
        return not self._queue or self._scaled(self._expected[self._queue[0]]) < self._least / DOUBT

    def _scaled(self, expected: float) -> float:
        return expected * self._measured / self._seen if self._seen else math.inf


class Bisection:
    """Bisection of groups of quantizers, the noisiest first, where little is known of what each of them does.

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
