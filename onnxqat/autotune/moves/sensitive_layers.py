"""The most sensitive layers, with 16-bit activations where the backend has them, else in float."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from onnxqat.autotune import sensitivity
from onnxqat.autotune.moves._base import Move as Base
from onnxqat.autotune.variants import Variant
from onnxqat.errors import QatError
from onnxqat.graph import io, qdq

if TYPE_CHECKING:
    from onnxqat.autotune.search import Search

COUNTS = (1, 2, 4, 8)
"""Numbers of layers that are relieved."""

SHARE = 4
"""At most one layer in so many is relieved: an integer file is what was asked for. With one in ten, a DS-CNN for ``tensorrt`` had
no second one, which brings 6 dB, and trained for all of its time for none."""

WIDE = 16
PREFIX = "most sensitive layers: "


class Move(Base):
    """Attempts with 1, 2, 4 and 8 layers relieved, on top of the best of the calibrated files."""

    until = 0.6

    def __init__(self) -> None:
        self._ranked: list[str] | None = None

    def names(self, search: Search) -> tuple[str, ...]:
        """See the base class."""
        best = search.calibrated
        if best is None or best.variant is None or search.bits(best.path) < 8:
            return ()  # below 8 bits every layer costs, and training is what helps
        layers = sum(1 for q in qdq.quantizers(io.load(best.path)) if q.role == "weight")
        counts = [count for count in COUNTS if count <= layers // SHARE]
        return tuple(name for name in (f"{PREFIX}{count}" for count in counts) if not search.has(name))

    def planned(self, search: Search) -> tuple[str, ...]:
        """See the base class."""
        if search.tried:
            return self.names(search)
        return (f"{PREFIX}{COUNTS[0]}",) if (search.overrides.weight_bits or 8) >= 8 else ()

    def run(self, search: Search, name: str) -> None:
        """See the base class."""
        base = search.variant(without=PREFIX)
        if self._ranked is None:
            self._ranked = most_sensitive(search)
        nodes = tuple(self._ranked[: int(name.removeprefix(PREFIX))])
        if not search.insert(_wide(base, name, nodes), quietly=True):
            search.insert(_excluded(base, name, nodes))


def most_sensitive(search: Search) -> list[str]:
    """Nodes by the noise that their quantizers add alone, the largest first; none where that cannot be measured."""
    best = search.calibrated
    assert best is not None
    search.task.tell("sensitivity of layers")
    try:
        return sensitivity.ranked(search.task.original, io.load(best.path), search.parts.calibration)
    except QatError as error:
        search.remark(f"sensitivity was not measured: {error.message}")
        return []


def _wide(base: Variant, name: str, nodes: tuple[str, ...]) -> Variant:
    widths = tuple((node, base.overrides.weight_bits or 8, WIDE) for node in nodes)
    node_bits = (*base.overrides.node_bits, *widths)
    return dataclasses.replace(base, name=name, overrides=dataclasses.replace(base.overrides, node_bits=node_bits))


def _excluded(base: Variant, name: str, nodes: tuple[str, ...]) -> Variant:
    exclude = (*base.overrides.exclude, *nodes)
    return dataclasses.replace(base, name=name, overrides=dataclasses.replace(base.overrides, exclude=exclude))
