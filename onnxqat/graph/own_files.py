"""Files of a folder that a command wrote, by the hashes in the manifest there: no others are replaced by a later run."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from onnxqat import _version
from onnxqat.errors import UsageError
from onnxqat.graph import atomic, bundles
from onnxqat.graph.bundles import MANIFEST


class OwnFiles:
    """Files that `command` left in `folder`, where others may lie beside them.

    Args:
        folder: where the manifest is, or will be; without one of `command` in it, no file there is the command's.
        command: the first words of the command line, such as ``["onnxqat", "demo"]``.
    """

    def __init__(self, folder: Path, command: Sequence[str]) -> None:
        self.folder = folder
        self.command = list(command)
        found = bundles.read(folder, self.command)
        self._listed = dict(found.listed) if found is not None else {}
        self._is_own = found is not None

    def check(self, names: Sequence[str]) -> None:
        """Refuse to replace anything that the command did not write, or that was changed since.

        Args:
            names: files and folders in `folder` that are about to be written; they need not exist.

        Raises:
            UsageError: ``option-invalid``, with all the files concerned.
        """
        kept = [] if self._is_own or not (self.folder / MANIFEST).exists() else [MANIFEST]
        kept += [file for name in names for file in self._files(name) if not self._is_unchanged(file)]
        if kept:
            raise UsageError(
                "option-invalid",
                f"{self.folder}: not as {' '.join(self.command)} wrote it, and so not replaced: {', '.join(kept)}",
                hint="give a new folder: -o FOLDER, or move these files away",
            )

    @contextlib.contextmanager
    def writing(self, *names: str) -> Iterator[None]:
        """Run a block that writes `names`; when it ends without an error, what is there is the command's own.

        Raises:
            ModelError: ``output-not-writable``.
            UsageError: ``option-invalid``: of :meth:`check`, for a file that came or changed since.
        """
        self.check(names)
        yield
        self._list(names)

    def _files(self, name: str) -> list[str]:
        """Files that writing `name` may replace: itself, or all that is below it; a link is a file."""
        path = self.folder / name
        if path.is_dir() and not path.is_symlink():
            return [f"{name}/{file}" for file in bundles.files_below(path)]
        return [name] if path.is_symlink() or path.exists() else []

    def _is_unchanged(self, file: str) -> bool:
        path = self.folder / file
        return bundles.is_regular(path) and self._listed.get(file) == bundles.digest(path)

    def _list(self, names: Sequence[str]) -> None:
        """Bring the manifest up to date for `names`."""
        prefixes = tuple(f"{name}/" for name in names)
        others = {file: value for file, value in self._listed.items() if file not in names}
        self._listed = {file: value for file, value in others.items() if not file.startswith(prefixes)}
        self._listed |= {file: bundles.digest(self.folder / file) for name in names for file in self._files(name)}
        content = {"command": self.command, "onnxqat": _version.__version__, "sha256": self._listed}
        text = json.dumps(content, indent=2, sort_keys=True) + "\n"
        atomic.write_atomic(self.folder / MANIFEST, text.encode())
        self._is_own = True
