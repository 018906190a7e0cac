"""Names of the equalizations in the order in which they run, and what a user or a table asks for.

What they do is in :mod:`onnxqat.equalization`; tables name them, so their names are known here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from onnxqat.backends import method_places
from onnxqat.errors import UsageError

ORDER = (
    "silu-equalization",
    "cross-layer-equalization",
    "smoothquant",
    "awq",
    "high-bias-absorption",
    "outlier-channel-splitting",
)
"""Each works on the model as those before it made it."""

AUTO = ("silu-equalization", "cross-layer-equalization", "smoothquant")
"""Those that are tried by themselves: they cost no operator that was not there, or their threshold weighs it."""

VALUES = {"smoothquant": 0.5, "outlier-channel-splitting": 0.02}
"""Default of the number that may follow a name behind a colon, between 0 and 1."""

KNOWN = ("auto", "none", *ORDER)


@dataclasses.dataclass(frozen=True)
class Choice:
    """One equalization that is to run.

    Attributes:
        name: one of :data:`ORDER`.
        asked: by its name: it runs wherever it can. Otherwise where it helps on held-out samples.
        value: its number; the default where none was given.
    """

    name: str
    asked: bool
    value: float | None = None


def choices(asked: bool | str | Sequence[str], default: Sequence[str] = ("auto",)) -> tuple[Choice, ...]:
    """The equalizations that `asked` stands for, in the order of :data:`ORDER`.

    Args:
        asked: names, or one string of names with commas; ``auto``, ``none``; True for `default`, False for none.
        default: those of the table.

    Raises:
        UsageError: ``option-invalid``: an unknown name, with those that are known or the place where it is found; a
            number that is none or that the name has no use for; ``none`` beside a name.
    """
    if isinstance(asked, bool):
        return choices(tuple(default)) if asked else ()
    texts = [asked] if isinstance(asked, str) else list(asked)
    names = [name.strip() for text in texts for name in text.split(",")]
    if "none" in names:
        if len(set(names)) > 1:
            raise UsageError("option-invalid", "--equalize none goes with no other name", hint="leave one out")
        return ()
    found: dict[str, Choice] = {}
    for name in names:
        made = [_choice(each, asked=False) for each in AUTO] if name == "auto" else [_choice(name, asked=True)]
        found.update({one.name: one for one in made if one.asked or one.name not in found})
    return tuple(found[name] for name in ORDER if name in found)


def _choice(text: str, *, asked: bool) -> Choice:
    name, colon, number = text.partition(":")
    if name not in ORDER:
        raise UsageError(
            "option-invalid",
            f"there is no equalization named {name!r}",
            hint=method_places.hint(name, "--equalize", KNOWN),
        )
    value = VALUES.get(name)
    if colon:
        value = _number(name, number)
    return Choice(name, asked, value)


def _number(name: str, text: str) -> float:
    if name not in VALUES:
        raise UsageError(
            "option-invalid", f"{name} takes no number, but {text!r} was given", hint=f"write {name} alone"
        )
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        hint = f"a number from 0 to 1, as in {name}:{VALUES[name]:g}"
        raise UsageError("option-invalid", f"the number of {name} is {text!r}", hint=hint)
    return value
