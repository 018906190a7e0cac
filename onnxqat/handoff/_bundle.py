"""The bundle: a folder that appears whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from onnxqat.errors import UsageError
from onnxqat.graph import atomic

MANIFEST = "manifest.json"


def check_target(output: Path) -> None:
    """Refuse a place that holds something else than a bundle.

    Raises:
        UsageError: ``option-invalid``.
    """
    if not output.exists():
        return
    if not output.is_dir():
        raise UsageError("option-invalid", f"{output} is a file; a bundle is a folder")
    if any(output.iterdir()) and not (output / MANIFEST).is_file():
        raise UsageError(
            "option-invalid", f"{output} holds other files than a bundle's", hint="give a new folder, or an old bundle"
        )


@contextlib.contextmanager
def writing(output: Path) -> Iterator[Path]:
    """A new folder beside `output` that takes its place when the block ends without an error.

    An old bundle stays until then; after an error nothing of the new one is left.

    Raises:
        ModelError: ``output-not-writable``.
        UsageError: ``option-invalid``: something else than a bundle came into the place meanwhile.
    """
    with atomic.staged_folder(output, check_target) as staged:
        yield staged


def write_json(path: Path, content: Any) -> None:
    """Write `content` with sorted keys, so that equal content gives equal bytes."""
    path.write_text(json.dumps(content, indent=2, sort_keys=True, allow_nan=False) + "\n", encoding="utf-8")


def digests(folder: Path) -> dict[str, str]:
    """sha256 of every file below `folder`, by its path with forward slashes."""
    found = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        with path.open("rb") as file:
            found[path.relative_to(folder).as_posix()] = _sha256(file)
    return found


def _sha256(file: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while block := file.read(2**20):
        digest.update(block)
    return digest.hexdigest()


def digest(path: Path) -> str:
    """sha256 of a file."""
    with path.open("rb") as file:
        return _sha256(file)
