"""Limits of a compiler: what it refuses, fails at or leaves to the CPU, as rows of a table's key ``limits``."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Literal

Outcome = Literal["refused", "crash", "hang", "cpu"]
Form = Literal["any", "float", "quantized"]

SAID: dict[Outcome, str] = {
    "refused": "refuses the model",
    "crash": "crashes",
    "hang": "does not end",
    "cpu": "leaves it to the CPU",
}


@dataclasses.dataclass(frozen=True)
class Limit:
    """One thing that the compiler does not do.

    Attributes:
        op: operators, with ``|`` between them.
        outcome: ``refused``, ``crash`` and ``hang`` are for the whole model, ``cpu`` for the node.
        why: what was seen, in the compiler's own words where there are any.
        form: whether that is so between pairs, in float, or in either case.
        when: attribute values that it is for; any where it says nothing.
        rank: number of axes of its first input that it is for; any where it is 0.
        computed: it is for nodes whose second input, a layer's weight, is computed.
        unlike_ranks: it is for an If whose branches return a result with different numbers of axes, in branches too.
        behind: operators, with ``|`` between them, whose result the node reads where it is so; any where it says nothing.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    op: str
    outcome: Outcome
    why: str
    form: Form = "any"
    when: dict[str, Any] = dataclasses.field(default_factory=dict)
    rank: int = 0
    computed: bool = False
    unlike_ranks: bool = False
    behind: str = ""

    @property
    def ops(self) -> tuple[str, ...]:
        """The operators."""
        return tuple(self.op.split("|"))

    @property
    def producers(self) -> tuple[str, ...]:
        """The operators in front; none where the limit is for the node whatever it reads."""
        return tuple(self.behind.split("|")) if self.behind else ()

    @property
    def stops(self) -> bool:
        """Check whether the whole model does not compile."""
        return self.outcome != "cpu"
