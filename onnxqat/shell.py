"""Command lines that can be pasted into a shell."""

from __future__ import annotations

import os
import shlex


def command(name: str, *arguments: str, **options: object) -> str:
    """``onnxqat NAME ARGUMENTS --option value``, quoted for a shell.

    Words in capitals are for the user to fill in. An option that is None or an empty string is left out, and so is one
    that is neither text, a number nor a path: data that come from Python objects have no form on a command line.
    """
    words = ["onnxqat", name, *arguments]
    for key, value in options.items():
        if value is None or value == "" or not isinstance(value, (str, int, float, os.PathLike)):
            continue
        flag = "-o" if key == "o" else f"--{key.replace('_', '-')}"
        words += [flag, os.fspath(value) if isinstance(value, os.PathLike) else str(value)]
    return shlex.join(words)
