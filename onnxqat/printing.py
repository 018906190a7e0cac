"""Text for a terminal: the one place that prints. Characters that would steer the terminal are written as escapes.

Names of nodes, tensors and files, and what libraries say about them, come from strangers.
"""

from __future__ import annotations

import dataclasses
import logging
import sys
from typing import IO, Any, TypeVar

T = TypeVar("T")


def printable(text: str) -> str:
    """`text` on one line, with escapes for line ends, control characters and marks that turn the direction."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def lines(text: str) -> str:
    """`text` with its line ends and tabs; the rest as of :func:`printable`."""
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n"))


def shown(value: T) -> T:
    """A copy of a dataclass or tuple with every text in it as of :func:`printable`; other values as they are."""
    found: Any = value
    if isinstance(value, str):
        found = printable(value)
    elif isinstance(value, tuple):
        found = tuple(map(shown, value))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: shown(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init}
        found = dataclasses.replace(value, **fields)
    return found  # type: ignore[no-any-return]  # of the kind that was given


class LogFormatter(logging.Formatter):
    """Lines of a log as they may be printed."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        return printable(super().format(record))


def echo(text: str = "", *, err: bool = False, file: IO[str] | None = None) -> None:
    """Print `text` and a line end on standard output, with `err` on standard error, or to `file`.

    A stream that the shell closed gets nothing.
    """
    standard = sys.stderr if err else sys.stdout
    stream = standard if file is None else file
    if stream is not None:
        stream.write(lines(text) + "\n")
        stream.flush()
