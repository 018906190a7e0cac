"""One change of the guard, and its effect."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection
from typing import Any, Literal

from onnxqat.types import Remark

NAMED = 3
"""Nodes that a sentence names."""

Kind = Literal["range", "16 bits", "float"]


@dataclasses.dataclass(frozen=True)
class Change:
    """One remedy.

    Attributes:
        tensor: what the quantizer rounds.
        kind: another range, 16 bits, or float.
        what: in words.
        nodes: that it is about.
        output: the output that it is for; where values were not finite, the tensor where that began.
        without_db: signal to noise of `output` with all other changes and without this one; minus infinity where the
            output is not finite then, NaN where it was not measured.
        with_db: the same with all changes. Both come from the switchboard; a sole change, and one that the switchboard
            does not show to help, is measured on the files with and without it.
        cost: integer nodes that become float.
        alone_db: signal to noise of `output` with this quantizer alone, where `without_db` says nothing because weights
            were rounded on data for the file as it was; NaN elsewhere.
    """

    tensor: str
    kind: Kind
    what: str
    nodes: tuple[str, ...]
    output: str = ""
    without_db: float = -math.inf
    with_db: float = math.inf
    cost: int = 0
    alone_db: float = math.nan

    @property
    def is_doubtful(self) -> bool:
        """True unless the switchboard shows that the output is better with it, or bad with its quantizer alone."""
        return not self.with_db > self.without_db and math.isnan(self.alone_db)

    def remark(self, total: int) -> Remark:
        """The change in a sentence; `total` is the number of integer nodes without any change."""
        if self.without_db == -math.inf:
            effect = f"without this, {self.output!r} is not finite where that of the float model is"
        elif math.isnan(self.without_db) and not math.isnan(self.alone_db):
            effect = f"quantized alone, it leaves {self.output!r} {self.alone_db:.1f} dB; with all changes that has {self.with_db:.1f} dB"
        elif math.isnan(self.without_db):
            effect = f"{self.output!r} has {self.with_db:.1f} dB with all changes"
        else:
            effect = f"{self.output!r} has {self.without_db:.1f} dB without this and {self.with_db:.1f} dB with it"
        cost = f"; it costs {self.cost} of {total} integer nodes" if self.kind == "float" else ""
        return Remark(f"{self.what}: {effect}{cost}", self.nodes, "guard", "result")


def floated(tensor: str, nodes: Collection[str], **found: Any) -> Change:
    """The change that leaves `tensor` without a quantizer, and therefore `nodes` in float; `found` is its effect."""
    names = tuple(sorted(nodes))
    listed = ", ".join(map(repr, names[:NAMED])) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
    what = f"{tensor!r} stays float" + (f", and with it {listed}" if names else "")
    return Change(tensor, "float", what, names, cost=len(names), **found)
