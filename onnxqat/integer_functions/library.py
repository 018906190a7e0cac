"""The integer functions that there are, by operator and by the name of a function in a file."""

from __future__ import annotations

import functools

from onnxqat import discover
from onnxqat.integer_functions import functions
from onnxqat.integer_functions.definition import IntegerFunction

STORAGES = ("int8", "uint8", "int16", "uint16")
"""Types of codes that functions read and give."""


@functools.cache
def kinds() -> dict[str, type[IntegerFunction]]:
    """Classes of functions by operator, in alphabetical order."""
    package = functions.__name__
    found = (discover.load(package, name).Function for name in discover.names(package))
    return {kind.operator: kind for kind in found}


def named(name: str) -> IntegerFunction | None:
    """Return the function that a file calls `name`; None where it is none of ours."""
    operator, *types = name.split("_")
    kind = kinds().get(operator)
    if kind is None or len(types) != 2 or not all(t in STORAGES for t in types):
        return None
    return kind(*types)


def chosen(text: str) -> tuple[str, ...]:
    """Operators of a list such as ``softmax,layernormalization``, in any case; ``all`` for every one.

    Raises:
        UsageError: ``name-unknown``.
    """
    known = {operator.lower(): operator for operator in kinds()}
    names = [name.strip().lower().replace("_", "").replace("-", "") for name in text.split(",") if name.strip()]
    if "all" in names:
        return tuple(kinds())
    for name in names:
        if name not in known:
            raise discover.unknown("integer function", name, ["all", *known])
    return tuple(dict.fromkeys(known[name] for name in names))
