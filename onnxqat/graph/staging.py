"""Folders for what is not finished yet: locked by the process that fills them, removed by a later one once it is dead.

A killed process leaves its folder behind and loses its lock. Locks (``flock``) tell the dead from the living across
containers and machines that share a disk, which numbers of processes do not. Where the system or the file system has no
locks, nothing of other processes is removed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

SUFFIX = ".part"
_OURS = re.compile(r"\.?onnxqat-[a-z0-9_]{8}\.part")  # as `tempfile.mkdtemp` names them
# Inside of a staging folder: what is being made, and a folder that was moved out of the way of it, under its own name.
NEW, REPLACED = "new", "replaced"
REMOVALS, REMOVAL_PAUSE = 20, 0.05  # one second: a killed compiler ends within it, and the next run tries again


@contextlib.contextmanager
def staging(parent: Path) -> Iterator[Path]:
    """Make a folder in `parent` for files that are about to take their place there; it is removed at the end.

    What killed processes left in `parent` is removed first.

    Raises:
        OSError: `parent` cannot be written.
    """
    remove_dead(parent)
    with _folder(parent, ".onnxqat-") as folder:
        yield folder


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """Make a folder in the system's place for temporary files; it is removed at the end.

    What killed processes left there is removed first.

    Raises:
        OSError: there is no room for it.
    """
    place = Path(tempfile.gettempdir())
    remove_dead(place)
    with _folder(place, "onnxqat-") as folder:
        yield folder


@contextlib.contextmanager
def _folder(parent: Path, prefix: str) -> Iterator[Path]:
    """Yield a folder inside of a locked one: its own lock stays free, for :func:`locked`."""
    folder, lock = _make(parent, prefix)
    try:
        new = folder / NEW
        new.mkdir()
        yield new
    finally:
        try:
            _remove(folder)
        except BaseException:  # a signal that came while the folder was being removed
            _remove(folder)
            raise
        finally:
            if lock is not None:
                os.close(lock)


def _make(parent: Path, prefix: str) -> tuple[Path, int | None]:
    """A new folder and its lock, None where there are no locks."""
    while True:
        folder = Path(tempfile.mkdtemp(dir=parent, prefix=prefix, suffix=SUFFIX))
        try:
            return folder, _lock(folder, wait=False)
        except (BlockingIOError, FileNotFoundError):
            continue  # another process took it for a dead one's before it was locked
        except OSError:
            return folder, None


def remove_dead(parent: Path) -> None:
    """Remove the staging folders in `parent` whose processes are dead.

    A folder that one of them had moved out of the way, and put nothing in the place of, is put back.
    """
    try:
        with os.scandir(parent) as entries:
            found = [Path(entry.path) for entry in entries if _OURS.fullmatch(entry.name) and _is_own_folder(entry)]
    except OSError:
        return
    for folder in found:
        try:
            lock = _lock(folder, wait=False)
        except OSError:  # of a living process, or there are no locks
            continue
        if lock is None:
            return
        try:
            _put_back(folder / REPLACED, parent)
            _remove(folder)
        finally:
            os.close(lock)


def _remove(folder: Path) -> None:
    """Remove `folder`; a process that is just being ended may still write into it, so more than once."""
    for _ in range(REMOVALS):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(REMOVAL_PAUSE)


def holds(path: str | os.PathLike[str]) -> bool:
    """Check whether `path` is in a staging folder: it belongs to a command, and is removed at the end of the block."""
    return any(_OURS.fullmatch(part) for part in Path(path).parts)


def _is_own_folder(entry: os.DirEntry[str]) -> bool:
    """Check whether `entry` is a folder of this user, and no link to one."""
    owner = getattr(os, "getuid", lambda: 0)()
    return entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == owner


def _put_back(replaced: Path, parent: Path) -> None:
    for old in list(replaced.iterdir()) if replaced.is_dir() else []:
        if not os.path.lexists(parent / old.name):
            with contextlib.suppress(OSError):
                old.rename(parent / old.name)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Hold the lock of `folder`, after whoever holds it; False where there are no locks."""
    try:
        lock = _lock(folder, wait=True)
    except OSError:
        lock = None
    try:
        yield lock is not None
    finally:
        if lock is not None:
            os.close(lock)


def _lock(folder: Path, *, wait: bool) -> int | None:
    """A descriptor that holds the lock of `folder` until it is closed; None on Windows.

    Raises:
        BlockingIOError: another process holds it, and `wait` is False.
        FileNotFoundError: the folder was removed before it could be locked.
        OSError: the file system has no locks.
    """
    if sys.platform == "win32":
        return None
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        if not os.path.samestat(os.fstat(descriptor), os.lstat(folder)):
            raise FileNotFoundError(folder)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
