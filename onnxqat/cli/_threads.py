"""Threads of libraries, such as the one that writes TensorBoard's files, that end at a limit of the machine."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from onnxqat.cli import _machine


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Let a limit that ends a thread end the command, whose work would be left undone with status 0.

    Python prints the traceback of such a thread, and the command goes on. Other errors of threads stay with Python.

    Raises:
        Exception: the first such limit, where nothing else ended the block.
    """
    found: list[BaseException] = []
    before = threading.excepthook

    def hook(arguments: threading.ExceptHookArgs) -> None:
        if arguments.exc_value is not None and _machine.limit(arguments.exc_value) is not None:
            found.append(arguments.exc_value)
        else:
            before(arguments)

    threading.excepthook = hook
    try:
        yield
    finally:
        threading.excepthook = before
    if found:
        raise found[0]
