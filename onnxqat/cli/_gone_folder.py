"""A working folder that was deleted: MKL, which comes with torch, ends the process there in words of its own."""

from __future__ import annotations

import importlib.abc
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

from onnxqat.errors import InputError


class _Finder(importlib.abc.MetaPathFinder):
    """Finds nothing: it keeps torch from being loaded."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """None, for the finders behind this one.

        Raises:
            InputError: ``machine-limit``.
        """
        if name == "torch":
            raise error()
        return None


def guard() -> None:
    """Refuse to load torch where the working folder is gone; commands without it run on absolute paths."""
    if is_gone():
        sys.meta_path.insert(0, _Finder())


def is_gone() -> bool:
    """Return True where there is no working folder."""
    try:
        os.getcwd()
    except OSError:
        return True
    return False


def error() -> InputError:
    """Make the error that says so."""
    return InputError("machine-limit", "the working folder does not exist any more", hint="change to one that does")
