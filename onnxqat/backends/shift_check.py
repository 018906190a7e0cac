"""Limits of a backend's shifters, on positions: the position of a tensor is ``-log2(scale)``."""

from __future__ import annotations

import re

TERMS = ("in0", "in1", "in2", "out", "max_in", "min_in", "sum_in")
_TERM = re.compile(r"\s*([+-]?)\s*(\w+)")


def parse(text: str) -> tuple[tuple[int, str], ...]:
    """The signed terms of a sum such as ``in0 + in1 - out``.

    Raises:
        ValueError: it is no such sum.
    """
    found: list[tuple[int, str]] = []
    position = 0
    while position < len(text.rstrip()):
        match = _TERM.match(text, position)
        if match is None or (found and not match[1]) or match[2] not in TERMS:
            raise ValueError(f"shift {text!r} is no sum of {', '.join(TERMS)}, such as in0 + in1 - out")
        found.append((-1 if match[1] == "-" else 1, match[2]))
        position = match.end()
    if not found:
        raise ValueError("a shift names at least one tensor")
    return tuple(found)
