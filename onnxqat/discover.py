"""Find a plug-in by its file name: a file's name is its key, and nothing registers itself on import."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import pkgutil
from collections.abc import Mapping, Sequence
from types import ModuleType

from onnxqat.errors import UsageError

_LONGEST = 300  # characters of the names in a hint: all backends, and not the thousands of tensors of a model


def names(package: str) -> list[str]:
    """Names of the public modules of `package`, sorted; modules that start with ``_`` are not listed."""
    path = importlib.import_module(package).__path__
    return sorted(m.name for m in pkgutil.iter_modules(path) if not m.name.startswith("_"))


def load(package: str, name: str) -> ModuleType:
    """Import module `name` of `package`; ``-`` and ``_`` are the same.

    Raises:
        UsageError: ``name-unknown``, with the closest names that exist.
    """
    key = name.replace("-", "_")
    if not holds(package, key):
        known = [each.replace("_", "-") for each in names(package)]
        raise unknown(_one_of(package.rpartition(".")[2]), name, known)
    return importlib.import_module(f"{package}.{key}")


def holds(package: str, key: str) -> bool:
    """Return True for a key that :func:`names` lists; asks for the one file, as observers are found once per tensor."""
    if not key.isidentifier() or key.startswith("_"):
        return False
    spec = importlib.util.find_spec(f"{package}.{key}")
    return spec is not None and spec.has_location  # a folder without an __init__.py has none


def unknown(kind: str, name: str, known: list[str], elsewhere: Mapping[str, str] | None = None) -> UsageError:
    """The error for a `name` that is none of `known`, with a suggestion.

    Args:
        kind: of what is named, in the singular.
        name: as it was given.
        known: names that there are.
        elsewhere: names that other tools have, in lower case and without ``-`` and ``_``, and those of `known` for them.
    """
    same = (elsewhere or {}).get(name.lower().replace("-", "").replace("_", ""))
    hint = suggestion(name, known) if same is None else f"that is {same} here"
    return UsageError("name-unknown", f"there is no {kind} named {name!r}", hint=hint)


def suggestion(name: str, known: Sequence[str]) -> str:
    """A hint for a `name` that is none of `known`: the closest ones, or what there is."""
    alike = {each.replace("-", "_").lower(): each for each in known}
    close = [alike[each] for each in difflib.get_close_matches(name.replace("-", "_").lower(), alike, n=3)]
    if close:
        return f"did you mean {', '.join(close)}?"
    listed: list[str] = []
    length = 0
    for each in known:
        length += len(each)
        if listed and length > _LONGEST:
            break
        listed.append(each)
    more = f" and {len(known) - len(listed)} more" if len(known) > len(listed) else ""
    return f"one of: {', '.join(listed)}{more}" if known else ""


def _one_of(folder: str) -> str:
    """Return the singular of the name `folder`: strategy of strategies, pass of passes, method of methods."""
    for many, one in (("ies", "y"), ("sses", "ss"), ("s", "")):
        if folder.endswith(many):
            return folder.removesuffix(many) + one
    return folder
