"""Data files of models above 2 GB: named by their content, and removed once no graph of the folder names them.

``m.onnx`` has its weights in ``m.onnx.<16 hexadecimal digits of their SHA-256>.data``. A graph and its weights are two
files, and no system renames two at once: since other weights have another name, renaming the graph switches both.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import re
from collections.abc import Collection
from pathlib import Path

_DIGITS = 16
_LONGEST = 150  # letters of the model's name that go into it: file systems end names at 255 bytes


def name_for(model: Path, data: Path) -> str:
    """Name of the file of weights beside the graph `model`, for weights that lie in `data`."""
    digest = hashlib.sha256()
    with data.open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return f"{_stem(model)}.{digest.hexdigest()[:_DIGITS]}.data"


def _stem(model: Path) -> str:
    """File name of the model, with an underscore for each character that a location of external data must not hold."""
    return re.sub(r"[^\w.+=@,() -]", "_", model.name)[:_LONGEST]


def candidates(model: Path) -> set[str]:
    """Names of the files beside the graph `model` that are called as its weights are."""
    pattern = re.compile(rf"{re.escape(_stem(model))}\.[0-9a-f]{{{_DIGITS}}}\.data")
    return {name for name in _files(model.parent) if pattern.fullmatch(name)}


def remove_unused(model: Path, keep: Collection[str]) -> None:
    """Remove the weights of what `model` was before: the :func:`candidates` that no graph beside it names.

    Call it with the folder locked: another process may have put weights there whose graph is about to come.

    Args:
        model: the graph, which has been replaced.
        keep: names of files that stay.
    """
    unused = candidates(model) - set(keep)
    # Copies of a graph, under names such as m.onnx.bak, go on being whole.
    for name in _files(model.parent) if unused else []:
        if ".onnx" in name and not name.endswith(".data"):
            unused -= _named_in(model.parent / name, unused)
    for name in unused:
        (model.parent / name).unlink(missing_ok=True)


def _files(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]


def _named_in(graph: Path, names: Collection[str]) -> set[str]:
    """Return those of `names` that occur in the file `graph`; all if it cannot be read."""
    try:
        with graph.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return set()
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return {name for name in names if content.find(name.encode()) >= 0}
    except OSError:
        return set(names)
