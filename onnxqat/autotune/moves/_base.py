"""Base class of moves."""

from __future__ import annotations

import abc
import math
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from onnxqat.autotune.search import Search


class Move(abc.ABC):
    """One thing that a search does to come nearer to its target.

    Attributes:
        until: share of the budget after which it is not begun; what comes later needs the rest.
    """

    until: ClassVar[float] = 1.0

    @abc.abstractmethod
    def names(self, search: Search) -> tuple[str, ...]:
        """Name the attempts that it makes next; none where it has no part, or has made them all."""

    def planned(self, search: Search) -> tuple[str, ...]:
        """Name the attempts that it may make later, for a plan; those that it makes next where that is all."""
        return self.names(search)

    def seconds(self, search: Search) -> float:
        """Estimate the time of one attempt, a calibration here; infinite for what takes all that is left."""
        return search.calibration_seconds

    @abc.abstractmethod
    def run(self, search: Search, name: str) -> None:
        """Make the attempt `name`; what was made goes to :meth:`onnxqat.autotune.search.Search.judge`."""


class Learning(Move):
    """A run from the best of the calibrated files, whose length follows from the time that is left.

    Attributes:
        name: of its attempt.
    """

    name: ClassVar[str]

    def names(self, search: Search) -> tuple[str, ...]:
        """See the base class."""
        return () if search.calibrated is None else self.planned(search)

    def planned(self, search: Search) -> tuple[str, ...]:
        """See the base class."""
        return (self.name,) if search.trains and not search.has(self.name) else ()

    def seconds(self, search: Search) -> float:
        """See the base class."""
        return math.inf
