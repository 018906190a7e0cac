"""Provenance of a QDQ file, kept in its ``metadata_props``: float model, calibration data, preprocessing.

Names are stored without folders: the bytes of a file depend on no machine, and a path inside a stranger's file would
open whatever it names. What a name stands for is looked up beside the file and in the working folder.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import onnx_ir as ir

from onnxqat.graph import files_read
from onnxqat.graph.external import external_files

PREFIX = "onnxqat."
CHUNK = 2**16
CHUNKS = 16
"""Pieces of :data:`CHUNK` bytes that are hashed of a file of external data: it may have more bytes than fit in memory."""


@dataclasses.dataclass(frozen=True)
class Provenance:
    """The material that a QDQ file was made from; an empty string is unknown.

    Attributes:
        preprocess: preprocessing line of calibration images, in the form that ``--preprocess`` takes.
        data: name of the calibration data, without folders.
        data_sha256: fingerprint of them, see :mod:`onnxqat.data.identity`.
        float_model: file name of the float model.
        float_sha256: SHA-256 of that file, see :func:`digest`.
    """

    preprocess: str = ""
    data: str = ""
    data_sha256: str = ""
    float_model: str = ""
    float_sha256: str = ""


def of(model: ir.Model) -> Provenance:
    """The provenance that `model` records."""
    return read(model.metadata_props)


def read(metadata: Mapping[str, str]) -> Provenance:
    """The provenance among the metadata of a file."""
    fields = [field.name for field in dataclasses.fields(Provenance)]
    return Provenance(**{name: str(metadata.get(PREFIX + name) or "") for name in fields})


def write(model: ir.Model, provenance: Provenance) -> None:
    """Record `provenance` in `model`, in place; what it does not know is removed."""
    for name, value in dataclasses.asdict(provenance).items():
        if value:
            # A name of bytes that are no text here, of another locale or of none: protobuf takes text alone.
            text = value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
            model.metadata_props[PREFIX + name] = text
        else:
            model.metadata_props.pop(PREFIX + name, None)


def float_model(source: object, model: ir.Model) -> tuple[str, str]:
    """File name and digest of a float model; two empty strings for one in memory.

    Args:
        source: the model as the caller gave it.
        model: `source`, loaded and not yet changed: it knows the files of its external data.
    """
    if not isinstance(source, (str, os.PathLike)):
        return "", ""
    path = Path(source)
    return path.name, digest(path, external_files(model))


def digest(path: Path, external: Iterable[Path] = ()) -> str:
    """SHA-256 in hexadecimal: of the file alone what ``sha256sum`` prints, with `external` files of both.

    Of an external file, size and :data:`CHUNKS` pieces from all over it are hashed.

    Raises:
        OSError: a file cannot be read.
    """
    whole = hashlib.sha256()
    files_read.check_regular(path)
    with open(path, "rb") as file:
        while piece := file.read(2**20):
            whole.update(piece)
    others = list(external)
    if not others:
        return whole.hexdigest()
    both = hashlib.sha256(whole.digest())
    for other in others:
        add_pieces(both, other)
    return both.hexdigest()


def add_pieces(whole: hashlib._Hash, path: Path, *, chunks: int = CHUNKS) -> None:
    """Add the size of a file and `chunks` pieces from all over it to `whole`; all of a small file.

    Raises:
        OSError: the file cannot be read.
    """
    files_read.check_regular(path)
    size = path.stat().st_size
    whole.update(size.to_bytes(8, "little"))
    with open(path, "rb") as file:
        if size <= CHUNK * chunks:
            whole.update(file.read())
            return
        for place in range(chunks):
            file.seek((size - CHUNK) * place // max(chunks - 1, 1))
            whole.update(file.read(CHUNK))


def find(name: str, near: object = None) -> Path | None:
    """The file or folder of this name beside the model `near` or in the working folder; None where there is none.

    Args:
        name: as recorded. A name with a folder in it is none that :func:`write` was given: it is not followed.
        near: the QDQ model as the caller gave it; its folder is searched first where it is a path.
    """
    if not name or name in (os.curdir, os.pardir) or Path(name).name != name or "\0" in name:
        return None
    folders = [Path(near).parent] if isinstance(near, (str, os.PathLike)) else []
    return next((folder / name for folder in (*folders, Path()) if (folder / name).exists()), None)


def find_float(model: ir.Model, near: object = None) -> Path | None:
    """The float model that `model` was made from, where its file is found and has the digest that is recorded.

    Args:
        model: the QDQ model.
        near: as of :func:`find`.
    """
    recorded = of(model)
    path = find(recorded.float_model, near)
    return path if path is not None and path.is_file() and _has_hash(path, recorded.float_sha256) else None


def _has_hash(path: Path, sha256: str) -> bool:
    from onnxqat.errors import ModelError
    from onnxqat.graph import io

    try:
        return digest(path, external_files(io.load(path))) == sha256
    except (ModelError, OSError):
        return False
