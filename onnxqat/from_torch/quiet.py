"""torch's exporters warn of what is checked here, and print their graphs, some of it from C++."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from typing import IO


class Printed:
    """Output of a context; `text` is complete when the context has ended."""

    text = ""


@contextlib.contextmanager
def quiet() -> Iterator[Printed]:
    """Silence warnings and logging, and collect standard output and error in ``Printed.text``."""
    printed, of_python = Printed(), io.StringIO()
    disabled = logging.root.manager.disable
    with tempfile.TemporaryFile() as of_process, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.ERROR)
        try:
            with (
                contextlib.redirect_stdout(of_python),
                contextlib.redirect_stderr(of_python),
                _descriptors_to(of_process),
            ):
                yield printed
        finally:
            logging.disable(disabled)
            of_process.seek(0)
            printed.text = of_python.getvalue() + of_process.read().decode("utf-8", "replace")


@contextlib.contextmanager
def _descriptors_to(file: IO[bytes]) -> Iterator[None]:
    """Descriptors 1 and 2 of the process lead into `file`; one that is closed stays closed."""
    kept: list[tuple[int, int]] = []
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is not None:
            stream.flush()
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):
            kept.append((descriptor, os.dup(descriptor)))
            os.dup2(file.fileno(), descriptor)
    try:
        yield
    finally:
        for descriptor, copy in kept:
            os.dup2(copy, descriptor)
            os.close(copy)
