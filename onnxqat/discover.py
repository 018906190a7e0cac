"""Find a plug-in by its file name: a file's name is its key, and nothing registers itself on import."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from types import ModuleType

from onnxqat.errors import UsageError


def names(package: str) -> list[str]:
    """Names of the public modules of `package`, sorted; modules that start with ``_`` are not listed."""
    path = importlib.import_module(package).__path__
    return sorted(m.name for m in pkgutil.iter_modules(path) if not m.name.startswith("_"))


def load(package: str, name: str) -> ModuleType:
    """Import module `name` of `package`; ``-`` and ``_`` are the same.

    Raises:
        UsageError: ``name-unknown``, with the closest names that exist.
    """
    found, key = names(package), name.replace("-", "_")
    if key not in found:
        raise unknown(package.rpartition(".")[2].rstrip("s"), name, found)
    return importlib.import_module(f"{package}.{key}")


def unknown(kind: str, name: str, known: list[str]) -> UsageError:
    """The error for a `name` that is none of `known`, with a suggestion."""
    close = difflib.get_close_matches(name.replace("-", "_"), known, n=3)
    hint = f"did you mean {', '.join(close)}?" if close else f"one of: {', '.join(known)}"
    return UsageError("name-unknown", f"there is no {kind} named {name!r}", hint=hint)
