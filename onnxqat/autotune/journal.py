"""Search on the disk: what was tried, and the files that a later run goes on from.

The best file is in the output folder from the moment on at which it is known, so that neither Ctrl-C nor a killed process
loses it. A later run with the same model, data and choices goes on from there.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir

from onnxqat._version import __version__
from onnxqat.autotune.attempt import Attempt, Tried
from onnxqat.autotune.variants import Variant
from onnxqat.errors import QatError, UsageError
from onnxqat.graph import atomic, io, provenance, query
from onnxqat.placement.table_overrides import Overrides

SO_FAR = "so_far.qdq.onnx"
"""The best of a search that has not ended: judged, not proven."""

FOLDER, FILE = "search", "search.json"

UNFINISHED = "unfinished{}.qdq.onnx"
"""The best of an attempt that is not over, beside the files of those that are; each run has a number of its own, since it
replaces no file that it reads."""

_MADE = "onnxqat.search"
"""Metadata of that file: the key of its search, and the attempt. They are of one piece with it, so a run that is killed
leaves both or neither."""


def key(**choices: Any) -> str:
    """SHA-256 of what decides a search: two runs of the same key try the same things."""
    text = json.dumps({"version": __version__, **choices}, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()


class Journal:
    """Record of a search in the folder of its output.

    Args:
        output: the folder.
        of: key of the search, see :func:`key`.
        origin: name and digest of the float model, which the best file records.

    Raises:
        UsageError: ``option-invalid``: there is a folder of that name which holds something else.
    """

    def __init__(self, output: Path, of: str, origin: tuple[str, str]) -> None:
        self._output, self._key, self._origin = output, of, origin
        self._folder = output / FOLDER
        numbered = (self._folder / UNFINISHED.format(number) for number in itertools.count())
        self._unfinished = next(path for path in numbered if not path.exists())
        if self._holds_something_else():
            text = f"{self._folder} is there, and holds no record of a search: its files are not touched"
            raise UsageError("option-invalid", text, hint="give another folder with -o")

    def _holds_something_else(self) -> bool:
        """Check for files beside no record; hidden ones are what a killed run was about to put into its place."""
        if not self._folder.exists() or (self._folder / FILE).is_file():
            return False
        return not self._folder.is_dir() or any(not each.name.startswith(".") for each in self._folder.iterdir())

    def read(self) -> list[Tried]:
        """Attempts of an earlier run of the same search whose files are still there; empty where it was another."""
        try:
            found = json.loads((self._folder / FILE).read_text(encoding="utf-8"))
            if found["key"] != self._key:
                return []
            return [_tried(entry, self._folder) for entry in found["attempts"]]
        except (OSError, ValueError, KeyError, TypeError):
            return []  # none, or not written by this version: the search begins anew

    def path(self, number: int) -> Path:
        """The file of attempt `number`, to be written; the record is there before it, so that the folder is known again."""
        if not (self._folder / FILE).is_file():
            self.write((), ())
        return self._folder / f"{number}.qdq.onnx"

    def write(self, tried: Iterable[Tried], needed: Iterable[Path]) -> None:
        """Record all attempts; files that are not `needed` are removed."""
        attempts = list(tried)
        entries = [_entry(each) for each in attempts]
        atomic.make_folder(self._folder)
        content = json.dumps({"key": self._key, "attempts": entries}, indent=1)
        atomic.write_atomic(self._folder / FILE, content.encode())
        kept = {*needed, self._unfinished}
        for path in (*(each.path for each in attempts), *self._all_unfinished()):
            if path not in kept and path.parent == self._folder:
                path.unlink(missing_ok=True)

    def keep(self, best: Path, unfinished: Attempt | None = None) -> None:
        """Make `best` the file that an interruption leaves; `unfinished` is its attempt, where that is not over."""
        if unfinished is not None:
            quantized = io.load(best)
            quantized.metadata_props[_MADE] = json.dumps({"key": self._key, **dataclasses.asdict(unfinished)})
            io.save(quantized, self._unfinished)
        self.save(best, SO_FAR)

    def left(self) -> Tried | None:
        """The best of an attempt of the same search that was ended; None where there is none."""
        found = [each for each in map(self._read_unfinished, self._all_unfinished()) if each is not None]
        return min(found, key=lambda made: made.drop, default=None)

    def _all_unfinished(self) -> list[Path]:
        """Files of those names, and no others that begin like them."""
        stem, suffix = UNFINISHED.split("{}")
        found = sorted(self._folder.glob(UNFINISHED.format("*")))
        return [path for path in found if path.name.removeprefix(stem).removesuffix(suffix).isdecimal()]

    def _read_unfinished(self, path: Path) -> Tried | None:
        try:
            found = json.loads(io.load(path).metadata_props[_MADE])
            return Tried(_attempt(found), path) if found["key"] == self._key else None
        except (QatError, ValueError, KeyError, TypeError):
            return None  # not written by this version

    def save(self, path: Path, name: str) -> Path:
        """Write the file `path` into the output folder, with what it was made from."""
        atomic.make_folder(self._output)
        quantized = io.load(path)
        quantized.metadata_props.pop(_MADE, None)
        recorded = provenance.of(quantized)
        made_from = dataclasses.replace(recorded, float_model=self._origin[0], float_sha256=self._origin[1])
        provenance.write(quantized, made_from)
        return Path(io.save(quantized, self._output / name))

    def end(self) -> None:
        """Remove the best so far, and the best of the last attempt on its way: the result has taken their place."""
        (self._output / SO_FAR).unlink(missing_ok=True)
        self._unfinished.unlink(missing_ok=True)


def _entry(tried: Tried) -> dict[str, Any]:
    variant = None if tried.variant is None else dataclasses.asdict(tried.variant)
    return {**dataclasses.asdict(tried.attempt), "file": tried.path.name, "variant": variant}


def _tried(entry: Mapping[str, Any], folder: Path) -> Tried:
    return Tried(_attempt(entry), folder / entry["file"], _variant(entry["variant"]))


def _attempt(entry: Mapping[str, Any]) -> Attempt:
    fields = {field.name: entry[field.name] for field in dataclasses.fields(Attempt)}
    return Attempt(**{**fields, "commands": tuple(entry["commands"])})


def _variant(entry: Mapping[str, Any] | None) -> Variant | None:
    if entry is None:
        return None
    given = {name: _tuples(value) for name, value in entry["overrides"].items()}
    return Variant(entry["name"], Overrides(**given), entry["rounding"], _tuples(entry["equalize"]))


def _tuples(value: Any) -> Any:
    """`value` with tuples in the place of JSON's lists."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def digest(model: ir.Model, origin: tuple[str, str]) -> str:
    """SHA-256 of the float model: of its file, else of nodes and constants."""
    if origin[1]:
        return origin[1]
    whole = hashlib.sha256()
    for node in model.graph:
        whole.update(f"{node.domain} {node.op_type} {node.name} {node.inputs} {node.attributes}\n".encode())
    for name, value in sorted(model.graph.initializers.items()):
        array = query.constant_array(value)
        whole.update(name.encode() + (b"" if array is None else array.tobytes()))
    return whole.hexdigest()
