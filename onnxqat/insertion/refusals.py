"""Culprits that the guard leaves quantized, since too many nodes would become float with them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Literal

from onnxqat.insertion.change import NAMED
from onnxqat.types import Remark

CHOICES = "choose by --exclude, or train"


@dataclasses.dataclass(frozen=True)
class Refusal:
    """A culprit that stays quantized.

    Attributes:
        tensor: its name.
        noise: that it brings alone, as a multiple of what the floor allows.
        nodes: that would become float for it.
        cost: number of the integer nodes that would be float then, with those of the changes before.
        limit: number that the guard takes at most.
        total: number of the integer nodes.
    """

    tensor: str
    noise: float
    nodes: tuple[str, ...]
    cost: int
    limit: int
    total: int


def remarks(refused: Iterable[Refusal]) -> list[Remark]:
    """Make a remark about a single one; of more, one with their number and the worst, and a detail about each.

    A culprit that several rounds came to is counted once, as the last of them saw it.
    """
    of = {each.tensor: each for each in refused}
    worst = sorted(of.values(), key=lambda each: -each.noise)
    single = [_remark(each, "result" if len(worst) == 1 else "detail") for each in worst]
    if len(worst) < 2:
        return single
    named = ", ".join(repr(each.tensor) for each in worst[:NAMED])
    text = (
        f"{len(worst)} tensors cost accuracy and stay quantized, most of all {named}: with any of them more than "
        f"{worst[0].limit} of {worst[0].total} integer nodes would be float, which is what the guard takes; {CHOICES}"
    )
    return [Remark(text, source="guard", concern="result"), *single]


def _remark(refusal: Refusal, concern: Literal["result", "detail"]) -> Remark:
    text = (
        f"{refusal.tensor!r} costs accuracy and stays quantized: {refusal.cost} of {refusal.total} integer nodes would be "
        f"float, of which the guard takes {refusal.limit} at most; {CHOICES}"
    )
    return Remark(text, refusal.nodes, "guard", concern)
