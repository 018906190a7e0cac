"""Files and folders that appear whole or not at all, also after a crash of the machine."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from onnxqat.errors import ModelError
from onnxqat.graph import files_read
from onnxqat.graph.staging import REPLACED, staging

_EXCHANGE = 2  # RENAME_EXCHANGE of Linux's renameat2, RENAME_SWAP of macOS's renamex_np
_AT_FDCWD = -100
# What file systems say that cannot bring a folder to the disk, or exchange two names.
_NOT_POSSIBLE = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF, errno.EACCES, errno.EXDEV, errno.EPERM)


def check_writable(path: str | os.PathLike[str], *, folder: bool = False) -> None:
    """Refuse an output that cannot be written, before hours of work go into it.

    Args:
        path: the file, whose folder must exist; or with `folder` a folder, which may be made with its parents.
        folder: see above.

    Raises:
        ModelError: ``output-not-writable``.
        UsageError: ``option-invalid``: it is a file that the command reads.
    """
    if not folder:
        files_read.plan(path)
    if Path(path).is_fifo():  # whether it has a reader shows only to who opens it, and so ends what that one reads
        raise _not_writable(Path(path), "a pipe, not a file")
    aim = target(Path(path))
    place = aim if folder or is_device(aim) else aim.parent
    while folder and not os.path.lexists(place) and place != place.parent:
        place = place.parent
    number = 0
    if aim.is_dir() and not folder:
        number = errno.EISDIR
    elif not place.exists():
        number = errno.ENOENT
    elif not (place.is_dir() or (place == aim and not folder)):
        number = errno.ENOTDIR
    elif not os.access(place, os.W_OK):
        number = errno.EACCES
    if number:
        raise _not_writable(Path(path), os.strerror(number))


def make_folder(path: Path) -> None:
    """Make the folder `path` with its parents, where it is not there.

    Raises:
        ModelError: ``output-not-writable``.
    """
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)


def target(path: Path) -> Path:
    """Resolve `path` if it is a link, so that its target is written and the link stays."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def is_device(path: Path) -> bool:
    """Check whether `path` is a device or pipe, such as /dev/null, which must not be replaced by a file."""
    return path.exists() and not path.is_file() and not path.is_dir()


def write_atomic(path: Path, content: bytes) -> None:
    """Write `content` so that `path` holds either what it held before or all of `content`.

    Devices are written to as they are, and so is a pipe that somebody reads.

    Raises:
        ModelError: ``output-not-writable``.
    """
    with staged_file(path, content) as put:
        put()


@contextlib.contextmanager
def staged_file(path: Path, content: bytes) -> Iterator[Callable[[], None]]:
    """Write `content` beside `path`, and yield the function that puts it into its place.

    With several of them nothing is replaced before everything is on the disk.

    Raises:
        ModelError: ``output-not-writable``.
    """
    path = target(path)
    with writing(path):
        if is_device(path):
            yield lambda: _write_device(path, content)
            return
        with staging(path.parent) as folder:
            write_through(folder / "file", content)
            yield lambda: put(folder / "file", path)


def _write_device(path: Path, content: bytes) -> None:
    waits = os.O_NONBLOCK if path.is_fifo() else 0  # without it, until somebody reads
    with open(path, "wb", opener=lambda name, flags: os.open(name, flags | waits)) as file:
        if waits:
            os.set_blocking(file.fileno(), True)
        file.write(content)


def write_through(path: Path, content: bytes) -> None:
    """Write a file and bring it to the disk.

    Raises:
        OSError: it cannot be written.
    """
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def put(staged: Path, path: Path) -> None:
    """Give the file `staged`, which is on the disk, the name `path`, so that the name is on the disk, too.

    Raises:
        OSError: it cannot be given that name.
    """
    os.replace(staged, path)
    sync_folder(path.parent)


def remove(path: Path) -> None:
    """Remove a file, if there is one, on the disk too.

    Raises:
        ModelError: ``output-not-writable``.
    """
    path = target(path)
    with writing(path):
        path.unlink(missing_ok=True)
        sync_folder(path.parent)


def sync(path: Path) -> None:
    """Bring the file `path`, which another program wrote, to the disk.

    Raises:
        OSError: the disk is full or damaged.
    """
    with path.open("rb+" if sys.platform == "win32" else "rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Bring the names in `folder` to the disk, where the system can.

    Raises:
        OSError: the disk is damaged.
    """
    if sys.platform == "win32":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NOT_POSSIBLE:
            raise
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def staged_folder(output: Path, check: Callable[[Path], None]) -> Iterator[Path]:
    """Yield a new folder that takes the place of `output` when the block ends without an error.

    What `output` holds stays until then; after an error nothing of the new one is left.

    Args:
        output: the folder; its parents are made.
        check: given the old folder once more when nobody can add to it, raises where it must not be removed: then it
            is back in its place.

    Raises:
        ModelError: ``output-not-writable``.
    """
    output = Path(os.path.realpath(output))  # what a link points to is replaced, and the link stays
    with contextlib.ExitStack() as stack:
        with writing(output):
            output.parent.mkdir(parents=True, exist_ok=True)
            staged = stack.enter_context(staging(output.parent)) / output.name
            staged.mkdir()
        with _named_as(staged, output):
            yield staged
        with writing(output):
            _sync_tree(staged)
            _put_folder(staged, output, check)
            sync_folder(output.parent)


@contextlib.contextmanager
def _named_as(staged: Path, output: Path) -> Iterator[None]:
    """Say where a file was about to go, not where it was staged, in errors of the block."""
    try:
        yield
    except ModelError as error:
        if str(staged) not in error.message:
            raise
        raise ModelError(error.code, error.message.replace(str(staged), str(output)), hint=error.hint) from None


def _sync_tree(folder: Path) -> None:
    for place, _, names in os.walk(folder, topdown=False):
        for name in names:
            path = Path(place, name)
            if path.is_file() and not path.is_symlink():
                sync(path)
        sync_folder(Path(place))


def _put_folder(staged: Path, output: Path, check: Callable[[Path], None]) -> None:
    """Give `staged` the name `output`; a folder that has it is exchanged for it in one step, where the system can."""
    while True:
        try:
            os.rename(staged, output)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.EACCES) or not output.is_dir():
                raise
        try:
            exchanged = _exchanged(staged, output)
        except FileNotFoundError:
            continue  # another process moved the old folder away
        if not exchanged:
            _move_aside(staged, output, check)
            return
        try:
            check(staged)
        except BaseException:
            _exchanged(staged, output)
            raise
        return


def _exchanged(one: Path, other: Path) -> bool:
    """Exchange the two names in one step; return False where the system cannot."""
    library: Any = None if sys.platform == "win32" else ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(one), os.fsencode(other)
    if hasattr(library, "renameat2"):
        done = library.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _EXCHANGE)
    elif hasattr(library, "renamex_np"):
        done = library.renamex_np(*names, _EXCHANGE)
    else:
        return False
    number = ctypes.get_errno()
    if done == 0:
        return True
    if number in _NOT_POSSIBLE:
        return False
    raise OSError(number, os.strerror(number), str(other))


def _move_aside(staged: Path, output: Path, check: Callable[[Path], None]) -> None:
    """Two renames: a process that is killed between them leaves the old folder where the next one puts it back."""
    aside = staged.parent.parent / REPLACED
    aside.mkdir(exist_ok=True)
    old = aside / output.name
    os.rename(output, old)
    try:
        check(old)
        os.rename(staged, output)
    except BaseException:
        os.rename(old, output)
        raise


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn the system's errors about `path` into one with a code.

    Raises:
        ModelError: ``output-not-writable``.
        UsageError: ``option-invalid``: it is a file that the command reads.
    """
    with files_read.replacing(path):
        try:
            yield
        except OSError as error:
            raise _not_writable(path, error.strerror or str(error)) from None


def _not_writable(path: Path, reason: str) -> ModelError:
    hint = ""
    if not path.parent.exists():
        hint = f"make the folder {path.parent} first"
    elif path.is_dir():
        hint = f"name a file in that folder, such as {path / 'model.onnx'}"
    return ModelError("output-not-writable", f"{path}: cannot be written: {reason}", hint=hint)
