"""Weights rounded on the calibration data at every width, also where training might follow."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from onnxqat.autotune.moves._base import Move as Base

if TYPE_CHECKING:
    from onnxqat.autotune.search import Search

SUFFIX = ", compensated rounding"


class Move(Base):
    """The best of the calibrated files again, with ``--rounding compensated``."""

    until = 0.4

    def names(self, search: Search) -> tuple[str, ...]:
        """See the base class."""
        best = search.calibrated
        if best is None or best.variant is None or best.variant.overrides.exact or search.has_like(SUFFIX):
            return ()
        return (best.attempt.name + SUFFIX,)

    def planned(self, search: Search) -> tuple[str, ...]:
        """See the base class."""
        return () if search.overrides.exact or search.has_like(SUFFIX) else (SUFFIX.strip(", "),)

    def run(self, search: Search, name: str) -> None:
        """See the base class."""
        search.insert(dataclasses.replace(search.variant(), name=name, rounding="compensated"))
