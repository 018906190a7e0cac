"""Results of other commands, read from their JSON, and logs of training runs and searches."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from onnxqat.errors import DataError
from onnxqat.graph import bundles, files_read
from onnxqat.report.build_handoff import runs_on

KINDS = ("profile", "validate", "handoff", "handoff_matrix", "auto", "mixed-precision")
LOG, SEARCH, MATRIX = "log.jsonl", "search.json", "matrix.json"
BUNDLE = bundles.REPORT
LARGEST = 2**28
"""Bytes of a result that is read: ``profile`` of a network of 5,000 layers writes a tenth."""


@dataclasses.dataclass(frozen=True)
class Result:
    """One result that is joined.

    Attributes:
        kind: the command, or ``log`` and ``search`` for those files.
        name: of the file.
        content: the JSON object, or the lines of a log.
        folder: where it lies.
    """

    kind: str
    name: str
    content: Any
    folder: Path


def read_results(given: Sequence[str | os.PathLike[str]]) -> list[Result]:
    """Read files, and of folders the ``log.jsonl``, ``search.json``, ``matrix.json`` or, of a bundle, ``report.json``.

    Raises:
        DataError: ``data-not-found``, ``data-format``.
    """
    return [_read(path) for entry in given for path in _files(Path(entry))]


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = [path / name for name in (LOG, SEARCH, f"search/{SEARCH}", MATRIX) if (path / name).is_file()]
    if not found and (path / BUNDLE).is_file():
        return [path / BUNDLE]
    if not found:
        text = f"{path}: there is no {LOG}, {SEARCH}, {MATRIX} or {BUNDLE} in the folder"
        raise DataError("data-not-found", text)
    return found


def _read(path: Path) -> Result:
    try:
        files_read.note(path, "a result")
        if path.stat().st_size > LARGEST:
            raise DataError("data-format", f"{path}: larger than {LARGEST >> 20} MB: no result of a command")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        if isinstance(error, FileNotFoundError):
            raise DataError("data-not-found", f"{path}: there is no such file") from None
        raise DataError("data-format", f"{path}: cannot be read: {error}") from None
    if path.suffix == ".jsonl":
        return Result("log", path.name, _lines(path, text), path.parent)
    try:
        content = json.loads(text, parse_constant=lambda _: None)
    except (ValueError, RecursionError) as error:
        raise DataError("data-format", f"{path}: no JSON: {error}") from None
    if path.name == BUNDLE and _is_of_bundle(content):
        return Result("handoff", f"{path.parent.name}/{path.name}", _shown(content), path.parent)
    return Result(_kind(path, content), path.name, content, path.parent)


def _is_of_bundle(content: Any) -> bool:
    """Check whether an object is what ``handoff`` writes into its bundle, which is no print of a command."""
    lists = ("nodes", "coverage", "outputs")
    return isinstance(content, dict) and "backend" in content and all(isinstance(content.get(n), list) for n in lists)


def _shown(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the report in a bundle in the form in which the command prints it."""
    nodes = [
        {**row, "kind": runs_on(str(row.get("kind")), str(row.get("detail")))}
        for row in content["nodes"]
        if isinstance(row, dict)
    ]
    compiler = " ".join(str(part) for part in (content.get("compiler"), content.get("version")) if part)
    return {
        "verdicts": content.get("verdicts"),
        "figures": {"backend": content["backend"], "compiler": compiler},
        "tables": {"nodes": nodes, "coverage": content["coverage"], "outputs": content["outputs"]},
    }


def _lines(path: Path, text: str) -> list[dict[str, Any]]:
    """Return the lines that are objects; the last one of a run that was killed may be cut off."""
    found = []
    for line in text.splitlines():
        try:
            entry = json.loads(line, parse_constant=lambda _: None)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict) and isinstance(entry.get("step"), int):
            found.append(entry)
    if not found:
        raise DataError("data-format", f"{path}: no line of it is one of a training log")
    return found


def _kind(path: Path, content: Any) -> str:
    if isinstance(content, dict):
        if isinstance(content.get("attempts"), list) and "key" in content:
            return "search"
        if isinstance(content.get("targets"), list) and isinstance(content.get("nodes"), list):
            return "handoff_matrix"
        if content.get("kind") in KINDS:
            return str(content["kind"])
    said = content.get("kind") if isinstance(content, dict) else None
    text = f"{path}: what {said} prints is not joined" if said else f"{path}: not what a command prints with --json"
    raise DataError("data-format", text, hint=f"give the JSON of {', '.join(KINDS)}, a {LOG}, {SEARCH} or {MATRIX}")


def rows(result: Result, table: str) -> list[Mapping[str, Any]]:
    """Return the rows of a table of a result; empty where it has none."""
    tables = result.content.get("tables")
    found = tables.get(table) if isinstance(tables, dict) else None
    return [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []


def number(row: Mapping[str, Any], key: str) -> float | None:
    """Return the number at `key`; None where there is none."""
    found = row.get(key)
    return float(found) if isinstance(found, (int, float)) and not isinstance(found, bool) else None


def text(row: Mapping[str, Any], key: str) -> str:
    """Return the text at `key`; empty where there is none."""
    found = row.get(key)
    return found if isinstance(found, str) else ""
