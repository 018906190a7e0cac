"""Numbers of things in sentences."""

from __future__ import annotations


def counted(number: int, thing: str, things: str = "") -> str:
    """Return ``1 layer`` or ``3 layers``.

    Args:
        number: how many.
        thing: the noun.
        things: its plural, where that is not the noun and an s.
    """
    return f"{number} {thing if number == 1 else things or thing + 's'}"
