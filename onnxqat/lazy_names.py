"""Public names of a package that are loaded on first use, so that importing it imports nothing heavy."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def faces(
    package: str, homes: Mapping[str, str], defined: Mapping[str, Any]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of the module `package`.

    Args:
        package: its name.
        homes: the module of each public name.
        defined: the names that it defines itself, its ``globals()``.
    """

    def get(name: str) -> Any:
        if name in homes:
            return getattr(importlib.import_module(homes[name]), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def names() -> list[str]:
        return sorted({*defined, *homes})

    return get, names
