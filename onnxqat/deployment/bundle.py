"""The bundle: a folder that appears whole or not at all."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from onnxqat.deployment import replaceable
from onnxqat.errors import UsageError
from onnxqat.graph import atomic
from onnxqat.graph.bundles import MANIFEST, digest

__all__ = ["MANIFEST", "check_target", "digest", "digests", "write_json", "writing"]


def check_target(output: Path) -> None:
    """Refuse a place that holds something else than a bundle, or a file that the command reads.

    Raises:
        UsageError: ``option-invalid``.
    """
    if output.exists() and not output.is_dir():
        raise UsageError("option-invalid", f"{output} is a file; a bundle is a folder")
    replaceable.check(output)


@contextlib.contextmanager
def writing(output: Path) -> Iterator[Path]:
    """A new folder beside `output` that takes its place when the block ends without an error.

    An old bundle stays until then; after an error nothing of the new one is left.

    Raises:
        ModelError: ``output-not-writable``.
        UsageError: ``option-invalid``: something else than a bundle came into the place meanwhile.
    """
    with atomic.staged_folder(output, lambda old: replaceable.check(old, output)) as staged:
        yield staged


def write_json(path: Path, content: Any) -> None:
    """Write `content` with sorted keys, so that equal content gives equal bytes."""
    path.write_text(json.dumps(content, indent=2, sort_keys=True, allow_nan=False) + "\n", encoding="utf-8")


def digests(folder: Path) -> dict[str, str]:
    """sha256 of every file below `folder`, by its path with forward slashes."""
    found = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        found[path.relative_to(folder).as_posix()] = digest(path)
    return found
