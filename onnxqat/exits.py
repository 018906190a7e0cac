"""An exit that the user's code asks for inside a command is an error: status 0 would say that the work was done."""

from __future__ import annotations

import contextlib
import sysconfig
import traceback
from collections.abc import Iterator

from onnxqat.errors import InputError


@contextlib.contextmanager
def refused() -> Iterator[None]:
    """Turn ``SystemExit``, and whatever else is raised past ``except Exception``, into an error; also a decorator.

    Data, scores, methods, modules and callbacks are code of the user that runs inside a command. An interrupt stays
    one, and so does what closes a generator.

    Raises:
        InputError: ``code-exited``, with file and line.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        what = f"sys.exit({error.code!r}) was called" if isinstance(error, SystemExit) else f"{error!r} was raised"
        raise InputError(
            "code-exited",
            f"{_failing_line(error)}: {what} before the work was done",
            hint="return, or raise an Exception that says what is wrong",
        ) from error


def _failing_line(error: BaseException) -> str:
    """File and line of the innermost call that is not in Python's own library."""
    frames = traceback.extract_tb(error.__traceback__)
    library = sysconfig.get_path("stdlib")
    ours = [f for f in frames if not f.filename.startswith(library) or "site-packages" in f.filename] or frames
    return f"{ours[-1].filename}, line {ours[-1].lineno}"
