"""Identity of a data source: name, fingerprint and preprocessing, cheap to take and the same on every machine.

A fingerprint is a SHA-256 over names, sizes or shapes, and pieces of content from all over the source. It tells two
data sets apart without reading them: a folder of a million images costs its listing and sixteen small reads.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxqat.graph.provenance import CHUNK, add_pieces

SPREAD = 16
"""Files, or rows of an array, whose content is hashed."""

WHOLE_BYTES = 2**24
"""Arrays up to this size are hashed whole, which takes some hundredths of a second."""


@dataclasses.dataclass(frozen=True)
class Identity:
    """The data that a model saw; an empty string is unknown.

    Attributes:
        name: file or folder name without its parents, or ``package.module:function``.
        sha256: fingerprint of the inputs in it, labels apart; empty for data that come from Python code.
        preprocess: preprocessing line that images go through.
    """

    name: str = ""
    sha256: str = ""
    preprocess: str = ""


def of_files(folder: Path, files: Sequence[Path]) -> str:
    """Fingerprint of the `files` below `folder`, sorted by path: relative names, sizes, content of :data:`SPREAD` files.

    Raises:
        OSError: a file cannot be read.
    """
    whole = hashlib.sha256()
    for path in files:
        whole.update(f"{path.relative_to(folder).as_posix()}\0{path.stat().st_size}\n".encode())
    for place in _spread_indices(len(files)):
        add_pieces(whole, files[place], chunks=1)
    return whole.hexdigest()


def of_arrays(arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    """Fingerprint of arrays by name: type, shape, and content of :data:`SPREAD` rows where an array is large."""
    whole = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name]
        whole.update(f"{name}\0{array.dtype.newbyteorder('<').str}\0{list(array.shape)}\n".encode())
        if array.dtype.hasobject:
            whole.update(repr(array.tolist()).encode())
        elif array.nbytes <= WHOLE_BYTES or array.ndim == 0:
            whole.update(_bytes(array))
        else:
            for place in _spread_indices(array.shape[0]):
                whole.update(_bytes(array[place])[:CHUNK])
    return whole.hexdigest()


def _spread_indices(count: int) -> list[int]:
    """Numbers of at most :data:`SPREAD` items from all over `count`."""
    return sorted({place * (count - 1) // (SPREAD - 1) for place in range(SPREAD)}) if count else []


def _bytes(array: npt.NDArray[Any]) -> bytes:
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
