"""Other range observers than that of the table."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from onnxqat.autotune.moves._base import Move as Base
from onnxqat.autotune.variants import Variant

if TYPE_CHECKING:
    from onnxqat.autotune.search import Search

OBSERVERS = ("mse", "percentile")
PREFIX = "observer "


class Move(Base):
    """One attempt an observer, unless the user has chosen one."""

    until = 0.4

    def names(self, search: Search) -> tuple[str, ...]:
        """See the base class."""
        chosen = search.overrides
        if any((chosen.observer, chosen.activation_observer, chosen.weight_observer)):
            return ()
        return tuple(name for name in map(PREFIX.__add__, OBSERVERS) if not search.has(name))

    def run(self, search: Search, name: str) -> None:
        """See the base class."""
        overrides = dataclasses.replace(search.overrides, observer=name.removeprefix(PREFIX))
        search.insert(Variant(name, overrides))
