"""Command lines that can be pasted into a shell."""

from __future__ import annotations

import os
import shlex


def command(name: str, *arguments: str, **options: object) -> str:
    """``onnxqat NAME ARGUMENTS --option value``, quoted for a shell.

    Words in capitals are for the user to fill in. An option of several values is repeated; True is its flag alone. One
    that is None, False or an empty string is left out, and so is one that is neither text, a number nor a path: data
    that come from Python objects have no form on a command line.
    """
    words = ["onnxqat", name, *arguments]
    for key, value in options.items():
        flag = "-o" if key == "o" else f"--{key.replace('_', '-')}"
        for one in value if isinstance(value, tuple) else (value,):
            words += _words(flag, one)
    return shlex.join(words)


def _words(flag: str, value: object) -> list[str]:
    if value is True:
        return [flag]
    if value is None or value is False or value == "" or not isinstance(value, (str, int, float, os.PathLike)):
        return []
    return [flag, os.fspath(value) if isinstance(value, os.PathLike) else str(value)]
