"""The recipes of this folder by name."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from onnxqat import discover
from onnxqat.placement import config_file
from onnxqat.placement.config_file import Config

FOLDER = Path(__file__).parent


def names() -> list[str]:
    """Return the names of the recipes, in order."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def file(name: str) -> Path:
    """Return the file of a recipe.

    Raises:
        UsageError: ``name-unknown``.
    """
    if name not in names():
        raise discover.unknown("recipe", name, names())
    return FOLDER / f"{name}.yaml"


def read(name: str) -> Config:
    """Return a recipe.

    Raises:
        UsageError: ``name-unknown``.
    """
    return config_file.read(file(name))


def recipes() -> dict[str, Config]:
    """Return all recipes by name."""
    return {name: read(name) for name in names()}


def plain(recipe: Config) -> dict[str, Any]:
    """Return a recipe as JSON holds it."""
    return {key: value for key, value in dataclasses.asdict(recipe).items() if key != "nodes"}
