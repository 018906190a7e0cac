"""Arithmetic of integer kernels: one file per arithmetic, named like it, with a class ``Arithmetic``.

A formula is written once and computes in numpy and in torch with the same bits.
"""

from __future__ import annotations

import inspect
from typing import cast

from onnxqat import discover
from onnxqat.arithmetic._base import Accumulator, Arithmetic, Overflow
from onnxqat.arithmetic._grid import Grid
from onnxqat.arithmetic._rounding import ROUNDINGS, Rounding
from onnxqat.errors import UsageError

__all__ = ["Accumulator", "Arithmetic", "Grid", "Overflow", "Rounding", "create", "names"]


def names() -> list[str]:
    """The arithmetics that exist."""
    return [name.replace("_", "-") for name in discover.names(__name__)]


def create(name: str, *, accumulator: Accumulator | None = None, rounding: Rounding | None = None) -> Arithmetic:
    """The arithmetic `name`.

    Args:
        name: ``onnxruntime``, ``fixed-point``, ``litert`` or ``shift``.
        accumulator: None: 32 bits that wrap around.
        rounding: None: the arithmetic's own.

    Raises:
        UsageError: ``name-unknown``; ``option-invalid`` for a rounding that does not exist, or of an arithmetic that
            has one rounding only.
    """
    kind = discover.load(__name__, name).Arithmetic
    if rounding is None:
        return cast(Arithmetic, kind(accumulator))
    if rounding not in ROUNDINGS:
        raise UsageError("option-invalid", f"there is no rounding {rounding!r}", hint=f"one of: {', '.join(ROUNDINGS)}")
    if "rounding" not in inspect.signature(kind).parameters:
        raise UsageError("option-invalid", f"arithmetic {kind.name!r} has one rounding, half to even")
    return cast(Arithmetic, kind(accumulator, rounding))
