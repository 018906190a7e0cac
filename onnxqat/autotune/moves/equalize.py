"""Cross-layer equalization wherever it can work, and not only where few samples show that it helps."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from onnxqat.autotune.moves._base import Move as Base
from onnxqat.passes import _base
from onnxqat.passes._linked_layers import Link, find
from onnxqat.passes.fold_batchnorm import FoldBatchnorm

if TYPE_CHECKING:
    from onnxqat.autotune.search import Search

EQUALIZED = ("auto", "cross-layer-equalization")
SUFFIX = ", cross-layer equalization"


class Move(Base):
    """The best of the calibrated files again, with linked layers equalized; none where no two layers are linked."""

    until = 0.4

    def names(self, search: Search) -> tuple[str, ...]:
        """See the base class."""
        best = search.calibrated
        if best is None or best.variant is None or best.variant.equalize is not True or not self.planned(search):
            return ()
        return (best.attempt.name + SUFFIX,)

    def planned(self, search: Search) -> tuple[str, ...]:
        """See the base class."""
        if search.has_like(SUFFIX):
            return ()
        prepared = search.task.original.clone()
        _base.rewrite(prepared, [FoldBatchnorm()])
        linked = any(isinstance(link, Link) for link in find(prepared.graph))
        return (SUFFIX.strip(", "),) if linked else ()

    def run(self, search: Search, name: str) -> None:
        """See the base class."""
        search.insert(dataclasses.replace(search.variant(), name=name, equalize=EQUALIZED))
