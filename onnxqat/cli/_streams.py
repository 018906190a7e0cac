"""Standard input, output and error, as the shell left them."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import select
import sys
import warnings
from typing import Any, NoReturn

from onnxqat import printing


def prepare() -> bool:
    """Make the streams fit for any text; False where standard output is closed.

    A closed one is opened to nothing: its number would be that of the next file, and what libraries say would end up
    in that.
    """
    for number in filter(_is_closed, range(3)):
        _send_nowhere(number)
    if sys.stderr is None:  # Python's way to say that it is closed
        sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), encoding="utf-8")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names are any text, and not every terminal has all letters
            stream.reconfigure(errors="backslashreplace")
    if logging.lastResort is not None:  # what prints the warnings of libraries, with names out of models
        logging.lastResort.setFormatter(printing.LogFormatter())
    warnings.showwarning = _show_warning
    return sys.stdout is not None


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: Any = None,
    line: str | None = None,
) -> None:
    """Print a warning on one line."""
    printing.echo(printing.printable(f"{filename}:{lineno}: {category.__name__}: {message}"), err=True, file=file)


def flush() -> None:
    """Write what standard output still holds.

    Raises:
        OSError: it cannot be written, such as BrokenPipeError where its reader has gone.
    """
    if sys.stdout is not None:
        sys.stdout.flush()


def end(status: int) -> NoReturn:
    """End the process with what it has written, and without the libraries' cleaning up: without memory, that crashes."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def is_gone() -> bool:
    """Check whether the reader of standard output has gone; if so, discard all further output to it."""
    if sys.stdout is None or not hasattr(select, "poll"):
        return False
    try:
        number = sys.stdout.fileno()
    except OSError:  # a stream of Python's own
        return False
    poll = select.poll()
    poll.register(number, select.POLLOUT)
    if not any(event & select.POLLERR for _, event in poll.poll(0)):
        return False
    _send_nowhere(number)
    return True


def _is_closed(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return True
    return False


def _send_nowhere(number: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    if null != number:
        os.dup2(null, number)
        os.close(null)
