"""The integer functions that there are, by operator and by the name of a function in a file."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import cast

from onnxqat import discover
from onnxqat.integer_functions import functions
from onnxqat.integer_functions.definition import IntegerFunction
from onnxqat.types import STORAGE

STORAGES = ("int8", "uint8", "int16", "uint16")
"""Types of codes that functions read and give."""

WIDEST_TABLE = 255
"""Largest distance of codes that have a table of one entry each."""

_TYPES = "|".join(STORAGES)
_NAME = re.compile(
    rf"(?P<operator>[A-Za-z]+)(?P<operands>[1-9][0-9]{{0,2}})?_(?P<x>{_TYPES})_(?P<y>{_TYPES})(_lut(?P<lut>[0-9]|1[0-5]))?"
)


@functools.cache
def kinds() -> dict[str, type[IntegerFunction]]:
    """Classes of functions by operator, in alphabetical order."""
    package = functions.__name__
    found = (discover.load(package, name).Function for name in discover.names(package))
    return {kind.operator: kind for kind in found}


def named(name: str) -> IntegerFunction | None:
    """Return the function that a file calls `name`; None where it is none of ours."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    operator, operands = found["operator"], found["operands"]
    if operands is not None and f"{operator}{operands}" in kinds():  # an operator whose own name ends so, as ReduceL2
        operator, operands = f"{operator}{operands}", None
    kind = kinds().get(operator)
    if kind is None or kind.has_tables != (found["lut"] is not None) or kind.is_variadic != (operands is not None):
        return None
    if operands is not None:
        return variadic(kind, found["x"], found["y"], int(operands))
    return made(kind, found["x"], found["y"], None if found["lut"] is None else int(found["lut"]))


def made(kind: type[IntegerFunction], x: str, y: str, lut: int | None = None) -> IntegerFunction:
    """Make the function of `kind` for two types of codes; one with a table gets ``2**lut`` entries."""
    if not kind.has_tables or (lut is not None and STORAGE[x][1] - STORAGE[x][0] <= WIDEST_TABLE):
        return kind(x, y)
    return cast("Callable[..., IntegerFunction]", kind)(x, y, lut)


def variadic(kind: type[IntegerFunction], x: str, y: str, operands: int) -> IntegerFunction:
    """Make the function of `kind` for so many operands."""
    return cast("Callable[..., IntegerFunction]", kind)(x, y, operands)


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
    found = dict.fromkeys(known[name] for name in names)
    # What an operator becomes in one of its places goes with it, as MaskedSoftmax with Softmax.
    return tuple(
        found | dict.fromkeys(n for n, kind in kinds().items() if len(kind.parts) == 1 and {*kind.parts} <= {*found})
    )
