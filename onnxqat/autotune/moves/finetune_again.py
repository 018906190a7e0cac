"""More training of the best file so far, in another order of the samples, as long as there is time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from onnxqat.autotune.moves import finetune
from onnxqat.autotune.moves._base import Move as Base

if TYPE_CHECKING:
    from onnxqat.autotune.search import Search

MOST = 1000
"""Rounds at most, of which none is shorter than some seconds."""

PREFIX = f"{finetune.NAME}, round "


class Move(Base):
    """A run at a time from the best file so far."""

    def __init__(self) -> None:
        self._is_over = False

    def names(self, search: Search) -> tuple[str, ...]:
        """See the base class."""
        began = any(tried.attempt.name == finetune.NAME for tried in search.tried)
        rounds = 1 + search.count(PREFIX)
        return (f"{PREFIX}{rounds + 1}",) if began and rounds < MOST and not self._is_over else ()

    def planned(self, search: Search) -> tuple[str, ...]:
        """See the base class."""
        return (f"{PREFIX}{2 + search.count(PREFIX)}",) if search.trains else ()

    def seconds(self, search: Search) -> float:
        """See the base class."""
        return math.inf

    def run(self, search: Search, name: str) -> None:
        """See the base class."""
        seed = search.task.seed + int(name.removeprefix(PREFIX)) - 1
        self._is_over = not search.train(name, search.best, seed=seed)
