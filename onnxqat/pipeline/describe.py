"""Passes in words: their docstrings, and the recipes that run them."""

from __future__ import annotations

import dataclasses
import inspect

from onnxqat import extension
from onnxqat.pipeline import lookup, recipes

RECIPES = {"prepare": recipes.PREPARE, "place": recipes.PLACE, "finish": recipes.FINISH, "deploy": recipes.DEPLOY}


@dataclasses.dataclass(frozen=True)
class Described:
    """One pass.

    Attributes:
        name: its name.
        summary: first sentence of its docstring.
        text: the whole docstring.
        recipes: names of the recipes that run it.
    """

    name: str
    summary: str
    text: str
    recipes: tuple[str, ...]


def passes() -> list[Described]:
    """Describe all passes that a name finds."""
    return [of(name) for name in extension.names(lookup.KIND)]


def of(name: str) -> Described:
    """Describe the pass called `name`, or that of the file `name`.

    Raises:
        UsageError: there is no such pass.
    """
    found = lookup.find(name)
    documented = found if isinstance(found, type) else getattr(found, "fn", found)
    text = inspect.getdoc(documented) or ""
    summary = " ".join(text.partition("\n\n")[0].split())
    return Described(found.name, summary, text, tuple(key for key, names in RECIPES.items() if found.name in names))
