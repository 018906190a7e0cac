"""An old bundle, the only folder that a new one takes the place of."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

from onnxqat.errors import UsageError
from onnxqat.graph import bundles, files_read
from onnxqat.graph.bundles import MANIFEST


def check(folder: Path, name: Path | None = None) -> None:
    """Refuse a folder in which anything would be lost: everything in it has to be as the manifest of a bundle lists it.

    An empty folder may be replaced too, and what does not exist.

    Args:
        folder: where it is.
        name: what messages call it, where it was moved.

    Raises:
        UsageError: ``option-invalid``, with the first file that is not of the bundle or that the command reads.
    """
    found = bundles.files_below(folder) if folder.exists() else []
    if not found:
        return
    stated = folder if name is None else name
    listed = _manifest_hashes(folder, stated)
    for file in found:
        path = folder / file
        if file != MANIFEST and file not in listed:
            _refuse(stated, f"it holds {file}, which is no file of the bundle there")
        files_read.check(path)
        if file != MANIFEST and (not bundles.is_regular(path) or bundles.digest(path) != listed[file]):
            _refuse(stated, f"{file} in it is not the file that the bundle's {MANIFEST} lists")


def _manifest_hashes(folder: Path, stated: Path) -> dict[str, str]:
    """The files of a bundle and their sha256, as its manifest says."""
    if not bundles.is_regular(folder / MANIFEST):
        _refuse(stated, f"it holds other files, and no {MANIFEST} of a bundle")
    found = bundles.read(folder)
    if found is None:
        _refuse(stated, f"its {MANIFEST} is not that of a bundle of onnxqat")
    return found.listed


def _refuse(folder: Path, why: str) -> NoReturn:
    raise UsageError(
        "option-invalid",
        f"{folder} is not replaced: {why}",
        hint="give a new folder, or move what is in the way",
    )
