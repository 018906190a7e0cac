"""Fine-tuning of the best of the calibrated files, against the float model and with the labels where there are some."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from onnxqat.autotune.moves._base import Move as Base

if TYPE_CHECKING:
    from onnxqat.autotune.search import Search

NAME = "fine-tuned"


class Move(Base):
    """One run, whose length follows from the time that is left."""

    def names(self, search: Search) -> tuple[str, ...]:
        """See the base class."""
        return (NAME,) if search.trains and search.calibrated is not None and not search.has(NAME) else ()

    def planned(self, search: Search) -> tuple[str, ...]:
        """See the base class."""
        return (NAME,) if search.trains and not search.has(NAME) else ()

    def seconds(self, search: Search) -> float:
        """See the base class."""
        return math.inf

    def run(self, search: Search, name: str) -> None:
        """See the base class."""
        calibrated = search.calibrated
        assert calibrated is not None
        search.train(name, calibrated, seed=search.task.seed)
