"""The backend's table as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnxqat.autotune.moves._base import Move as Base
from onnxqat.autotune.variants import Variant

if TYPE_CHECKING:
    from onnxqat.autotune.search import Search

NAME = "calibrated"


class Move(Base):
    """Calibration as ``insert-qdq`` does it without an option."""

    def names(self, search: Search) -> tuple[str, ...]:
        """See the base class."""
        return () if search.has(NAME) else (NAME,)

    def run(self, search: Search, name: str) -> None:
        """See the base class."""
        search.insert(Variant(name, search.overrides))
