"""Passes of the user's and their places in a recipe: ``NAME_OR_FILE[:before=NAME|:after=NAME]``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from onnxqat import discover
from onnxqat.errors import UsageError
from onnxqat.passes._base import Pass
from onnxqat.pipeline import lookup
from onnxqat.pipeline.lookup import PassSource

SIDES = ("before", "after")


@dataclasses.dataclass(frozen=True)
class Added:
    """One pass of the user's.

    Attributes:
        found: the pass, or its class.
        anchor: name of the pass of the recipe beside which it runs.
        side: ``before`` or ``after`` it.
    """

    found: Pass | type[Pass]
    anchor: str
    side: str

    @property
    def name(self) -> str:
        """The name of the pass, for records."""
        return self.found.name


def placed(sources: Sequence[PassSource | tuple[PassSource, str]], recipe: Sequence[str]) -> tuple[Added, ...]:
    """`sources` with their places in `recipe`; at its end without one, in the order in which they are given.

    Args:
        sources: passes; a string may end with its place, any other goes into a tuple with it.
        recipe: names of passes.

    Raises:
        UsageError: of :func:`onnxqat.pipeline.lookup.find`; ``name-unknown``: no pass of `recipe` has the name;
            ``option-invalid`` for another place.
    """
    found = []
    for source in sources:
        one, place = source if isinstance(source, tuple) else _split(source)
        side, anchor = _place(place, recipe)
        found.append(Added(lookup.find(one), anchor, side))
    return tuple(found)


def _split(source: PassSource) -> tuple[PassSource, str]:
    """Pass and place; a path may have colons itself."""
    if not isinstance(source, str):
        return source, ""
    name, colon, place = source.rpartition(":")
    return (name, place) if colon and "=" in place else (source, "")


def _place(place: str, recipe: Sequence[str]) -> tuple[str, str]:
    if not place:
        return "after", recipe[-1]
    side, _, anchor = place.partition("=")
    anchor = anchor.strip().replace("_", "-")
    if side not in SIDES:
        raise UsageError("option-invalid", f"there is no place {place!r} for a pass", hint="before=NAME or after=NAME")
    if anchor not in recipe:
        raise UsageError(
            "name-unknown",
            f"no pass {anchor!r} prepares a model",
            hint=discover.suggestion(anchor, recipe),
        )
    return side, anchor
