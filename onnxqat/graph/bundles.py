"""Bundles, the folders that a hand-off writes: what their manifest lists is whole only as it lists it.

So nothing is written beside a file of one, which would make it a folder that no later hand-off replaces.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from onnxqat.errors import UsageError

MANIFEST, REPORT = "manifest.json", "report.json"
COMMAND = ["onnxqat", "handoff"]
LARGEST = 2**26  # bytes of JSON: a manifest has a line a file, a report one a node; what is larger only has the name


@dataclasses.dataclass(frozen=True)
class Bundle:
    """A bundle, as its manifest says.

    Attributes:
        folder: where it is.
        listed: its files by their paths with forward slashes, and their sha256.
    """

    folder: Path
    listed: dict[str, str]

    def holds_unchanged(self, name: str) -> bool:
        """Check whether the file `name` exists with the digest that the manifest lists."""
        path = self.folder / name
        return is_regular(path) and digest(path) == self.listed.get(name)

    def report(self) -> dict[str, Any]:
        """Report of the hand-off; empty if the file is missing or was changed."""
        return _json(self.folder / REPORT) or {} if self.holds_unchanged(REPORT) else {}


def read(folder: Path, by: Sequence[str] = COMMAND) -> Bundle | None:
    """The bundle in `folder`, or what another command lists there; None without a manifest of the command `by`."""
    content = _json(folder / MANIFEST) or {}
    listed, command = content.get("sha256"), content.get("command")
    if not isinstance(command, list) or command[:2] != list(by) or not isinstance(listed, dict):
        return None
    return Bundle(folder, {str(name): str(value) for name, value in listed.items()})


def of(path: str | os.PathLike[str]) -> Bundle | None:
    """The bundle that `path` is a file of, changed or not; None where it is of none."""
    found = read(Path(path).absolute().parent)
    return found if found is not None and Path(path).name in found.listed else None


def outside(path: str | os.PathLike[str]) -> Path:
    """A name to derive others from: `path`, or for a file of a bundle that of the bundle, with the file's suffix."""
    found = of(path)
    if found is None:
        return Path(path)
    # Relative where the path is: `bundle/model.onnx` gives `bundle.onnx`.
    folder = Path(path).parent if Path(path).parent.name else found.folder
    return folder.with_name(folder.name + Path(path).suffix)


def digest(path: Path) -> str:
    """sha256 of a file."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            found.update(block)
    return found.hexdigest()


def files_below(folder: Path) -> list[str]:
    """Everything below `folder` that is no folder, links among them, by its path with forward slashes.

    Raises:
        UsageError: ``option-invalid``: a folder cannot be read, and may hold anything.
    """
    found = []
    for home, folders, files in os.walk(folder, onerror=_refuse_unread):
        found += [Path(home, name) for name in files]
        found += [Path(home, name) for name in folders if Path(home, name).is_symlink()]
    return sorted(path.relative_to(folder).as_posix() for path in found)


def _refuse_unread(error: OSError) -> NoReturn:
    raise UsageError("option-invalid", f"{error.filename}: cannot be read: {error.strerror}")


def is_regular(path: Path) -> bool:
    """Check whether `path` is a regular file, and no link to one."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def _json(path: Path) -> dict[str, Any] | None:
    if not is_regular(path) or path.stat().st_size > LARGEST:
        return None
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None
