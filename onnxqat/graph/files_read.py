"""Files that a command reads: none of its outputs takes the place of one of them.

Whoever opens a file of the user calls :func:`note`; whoever knows where an output goes calls :func:`plan`, so that the
command ends before the work begins; and every write goes through :func:`replacing`. All three look at the file, not at
its name: a hard link or a symbolic link is the same file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

from onnxqat import exits
from onnxqat.errors import InputError, QatError, UsageError
from onnxqat.graph import staging

P = ParamSpec("P")
R = TypeVar("R")
OUTPUT = "the output"
_WATCHED = 64  # files that are noted at once: a folder of images is not looked at twice
_State = tuple[int, int, int, int]  # device, number, size, and time of the last change
Identity = tuple[int, int]
"""Device and number of a file, which all its names share."""


@dataclasses.dataclass
class _Group:
    """Files that are read together, such as the images of a folder; they are looked at when an output may be one."""

    paths: tuple[str, ...]
    what: str

    @functools.cached_property
    def identities(self) -> frozenset[Identity]:
        return frozenset(filter(None, map(_identity, self.paths)))

    def has(self, identity: Identity) -> bool:
        """Tell if a file of the group is this one, and still there: the system gives the number of one that is gone anew."""
        return identity in self.identities and any(_identity(path) == identity for path in self.paths)


@dataclasses.dataclass
class _Command:
    """Files that one command reads and writes; outputs by their real paths, with the path as given and a name."""

    groups: list[_Group] = dataclasses.field(default_factory=list)
    planned: dict[str, tuple[str, str]] = dataclasses.field(default_factory=dict)
    written: set[str] = dataclasses.field(default_factory=set)
    noted: set[str] = dataclasses.field(default_factory=set)
    states: dict[str, _State | None] = dataclasses.field(default_factory=dict)

    def changed(self) -> str | None:
        """Return a file that is another one, or gone, since it was noted; None where there is none."""
        return next((path for path, state in self.states.items() if _state(path) != state), None)


# A value of the command that runs, as a decimal context is of the computation that runs: passing it by hand would put
# an argument that no caller understands on everything between a command and whoever opens a file.
_RUNNING: ContextVar[_Command | None] = ContextVar("onnxqat.graph.files_read", default=None)


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Run a block as a command: it must not write over files that it reads. A command within one is part of it.

    Raises:
        InputError: ``code-exited``: of :func:`onnxqat.exits.refused`; ``input-changed``: something went wrong, and a file
            that is read was replaced or removed meanwhile: weights are read when they are needed.
    """
    with exits.refused():
        if _RUNNING.get() is not None:
            yield
            return
        command = _Command()
        token = _RUNNING.set(command)
        try:
            yield
        except (QatError, MemoryError):
            raise
        except Exception as error:
            path = command.changed()
            if path is None:
                raise
            raise InputError(
                "input-changed",
                f"{path}: it was replaced or removed while the command read it ({type(error).__name__}: {error})",
                hint="run the command again, and leave the files that it reads until it has ended",
            ) from error
        finally:
            _RUNNING.reset(token)


def guard(function: Callable[P, R]) -> Callable[P, R]:
    """`function` as a command: see :func:`guarded`."""

    @functools.wraps(function)
    def run(*arguments: P.args, **keywords: P.kwargs) -> R:
        with guarded():
            return function(*arguments, **keywords)

    return run


def note(path: str | os.PathLike[str], what: str) -> None:
    """Remember that the file at `path` is about to be read, as `what` ("the model").

    What the command wrote itself is its own.

    Raises:
        OSError: of :func:`check_regular`.
        UsageError: ``option-invalid``: it is an output too.
    """
    note_all((path,), what)
    check_regular(path)


def check_regular(path: str | os.PathLike[str]) -> None:
    """Refuse to read pipes and devices: a pipe that nobody writes to keeps its reader waiting, and a device has no end.

    Raises:
        OSError: `path` is a pipe, a socket or a device, except the one that is always empty, or made by the kernel as
            it is read.
    """
    try:
        found = os.stat(path)
        is_made = stat.S_ISREG(found.st_mode) and not found.st_size and _has_no_storage(path)
    except (OSError, ValueError):
        return  # whoever opens it says so
    is_file = stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)
    if is_made or not (is_file or os.path.samefile(path, os.devnull)):
        raise OSError(errno.ESPIPE, "a pipe or a device, not a file", os.fspath(path))


def _has_no_storage(path: str | os.PathLike[str]) -> bool:
    """Tell if `path` lies in a file system of no blocks, as /proc: a file of size 0 there may have any content."""
    return hasattr(os, "statvfs") and os.statvfs(path).f_blocks == 0  # Windows has no such file systems


def note_all(paths: Iterable[str | os.PathLike[str]], what: str) -> None:
    """Remember many files that will be read, as :func:`note` does, without a look at them: their readers check them.

    Raises:
        UsageError: ``option-invalid``: one of them is an output too.
    """
    command = _RUNNING.get()
    if command is None:
        return
    own = command.written
    names = [os.fspath(path) for path in paths]
    new = [p for p in names if p not in command.noted and not (own and os.path.realpath(p) in own)]
    command.noted.update(new)
    if len(new) <= _WATCHED:
        found = {os.path.abspath(path): _state(path) for path in new}
        command.states.update({path: state for path, state in found.items() if not staging.holds(path)})
    group = _Group(tuple(map(os.path.abspath, new)), what)
    command.groups.append(group)
    for real, (output, name) in command.planned.items():
        if real not in own:
            _refuse(output, name, [group])


def plan(path: str | os.PathLike[str] | None, name: str = OUTPUT) -> None:
    """Say that `path`, where there is one, is going to be written, as `name` ("--output").

    Raises:
        UsageError: ``option-invalid``: it is a file that the command reads, or writes under another name.
    """
    command = _RUNNING.get()
    if command is None or path is None:
        return
    real = os.path.realpath(path)
    given, known = command.planned.setdefault(real, (os.fspath(path), name))
    if OUTPUT not in (name, known) and name != known and not _is_device(real):
        hint = "give each a name of its own"
        raise UsageError("option-invalid", f"{name} and {known} are the same file: {os.fspath(path)}", hint=hint)
    if real not in command.written:
        _refuse(given, known, command.groups)


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[None]:
    """A write to `path` in the block; when it ends without an error, the file is the command's own.

    Raises:
        UsageError: ``option-invalid``: `path` is a file that the command reads.
    """
    check(path)
    yield
    command = _RUNNING.get()
    if command is not None:
        command.written.add(os.path.realpath(path))


def adopt(path: str | os.PathLike[str]) -> None:
    """Take the output at `path`, which an earlier run of the command left, for the command's own: it may be read."""
    command = _RUNNING.get()
    if command is not None:
        command.written.add(os.path.realpath(path))


def check(path: str | os.PathLike[str]) -> None:
    """Refuse to replace or remove the file at `path` where the command reads it.

    Raises:
        UsageError: ``option-invalid``.
    """
    command = _RUNNING.get()
    real = os.path.realpath(path)
    if command is not None and real not in command.written:
        _refuse(*command.planned.get(real, (os.fspath(path), OUTPUT)), command.groups)


def _refuse(output: str, name: str, groups: Iterable[_Group]) -> None:
    found = _identity(output)
    for group in groups:
        if found is not None and group.has(found):
            raise UsageError(
                "option-invalid",
                f"{name} and {group.what} are the same file: {output}",
                hint="choose another name: no command replaces a file that it reads",
            )


def _is_device(path: str) -> bool:
    return os.path.exists(path) and not os.path.isfile(path)


def _state(path: str | os.PathLike[str]) -> _State | None:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _identity(path: str | os.PathLike[str]) -> Identity | None:
    """None where there is no regular file; a device or a pipe may be read and written."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISREG(found.st_mode) else None
