"""The order of the moves, and the time that each will take, about."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from onnxqat.autotune.moves._base import Move
from onnxqat.autotune.search import Search


@dataclasses.dataclass(frozen=True)
class Planned:
    """An attempt that may be made, unless the target is met before.

    Attributes:
        name: of the attempt.
        seconds: estimate; infinite for what takes all the time that is left.
    """

    name: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.name} ({'the rest' if math.isinf(self.seconds) else f'about {_rounded(self.seconds)} s'})"


def _rounded(seconds: float) -> str:
    """One significant digit: an estimate is no better."""
    if seconds < 1:
        return "1"
    digits = 10 ** math.floor(math.log10(seconds))
    return f"{round(seconds / digits) * digits:g}"


def of(search: Search, moves: Sequence[Move]) -> tuple[Planned, ...]:
    """The attempts that `moves` may make from now on, in order."""
    return tuple(Planned(name, move.seconds(search)) for move in moves for name in move.planned(search))


def follow(search: Search, moves: Sequence[Move]) -> None:
    """Make attempts in order until one meets the target, or the time is over; the first is made in any case."""
    left: list[str] = []
    for move in moves:
        while names := move.names(search):
            if not _may_begin(search, move):
                left += names
                break
            move.run(search, names[0])
        if search.met:
            return
    if not search.trains:
        search.remark("torch is not installed: nothing was fine-tuned (pip install 'onnxqat[train]')")
    if search.clock.spent > limit(search) and left:
        search.leave_out(left)


def _may_begin(search: Search, move: Move) -> bool:
    return not search.met and not (search.tried and search.clock.spent > move.until * limit(search))


def limit(search: Search) -> float:
    """Seconds of the budget that attempts may take: the proofs at the end need theirs."""
    return search.clock.seconds - search.reserve
