"""Files of backend tables: found by name or path, read, and merged with the tables that they extend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from onnxqat import discover, extension, yaml_mappings
from onnxqat.backends import former_keys
from onnxqat.errors import BackendError
from onnxqat.graph import files_read

FOLDER = Path(__file__).parent


def names() -> list[str]:
    """Names of the built-in backends."""
    return sorted(p.stem.replace("_", "-") for p in FOLDER.glob("*.yaml"))


def find(name: str, folder: Path = Path()) -> Path:
    """The file of the table `name`, or of the path `name` in `folder`.

    Raises:
        BackendError: ``backend-unknown``.
    """
    if name.endswith((".yaml", ".yml")):
        path = folder / name
        if not path.is_file():
            raise BackendError("backend-unknown", f"{path}: no such backend table")
        return path
    path = FOLDER / f"{name.replace('-', '_')}.yaml"
    if name.replace("-", "").replace("_", "").isalnum() and path.is_file():
        return path
    return _path_of_plugin(name)


def _path_of_plugin(name: str) -> Path:
    from onnxqat.backends import plugins, unsupported_targets

    reason = unsupported_targets.REFUSED.get(name.replace("_", "-"))
    if reason is not None:
        raise BackendError(
            "backend-unknown", f"{name} can have no table: {reason}", hint=f"one of: {', '.join(names())}"
        )
    found = plugins.find(name)
    if found is None:
        known = discover.unknown("backend", name, [*names(), *plugins.names()])
        raise BackendError("backend-unknown", known.message, hint=known.hint)
    return found


def merged(path: Path, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Return the keys of the table at `path`, merged with those of the tables that it extends.

    Args:
        path: YAML file.
        seen: tables that lead here.

    Raises:
        BackendError: ``backend-table``.
    """
    if path in seen:
        raise BackendError("backend-table", f"{path}: extends: the tables extend each other in a circle")
    raw = _with_absolute_paths(read(path), path.parent)
    if not isinstance(raw.get("extends"), str):
        return raw
    return _overlay(merged(find(raw["extends"], path.parent), (*seen, path)), raw)


def read(path: Path) -> dict[str, Any]:
    """Return the keys of the file at `path` alone.

    Raises:
        BackendError: ``backend-table``.
    """
    try:
        files_read.note(path, "a backend table")
        raw = yaml_mappings.load(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        detail = str(error).splitlines()[0]
        raise BackendError("backend-table", f"{path}: not readable as YAML: {detail}") from None
    if not isinstance(raw, dict):
        raise BackendError("backend-table", f"{path}: a table is a mapping of keys")
    return former_keys.renewed(raw)


def _with_absolute_paths(table: dict[str, Any], folder: Path) -> dict[str, Any]:
    """`table` with the Python files that it names, its compiler and observers, as paths in its own `folder`."""
    named = [(table, "route"), (table, "first_last_observer")]
    types = table.get("types")
    if isinstance(types, dict):
        named += [(row, "observer") for row in types.values() if isinstance(row, dict)]
    for row, key in named:
        if isinstance(row.get(key), str) and extension.is_file(row[key]):
            row[key] = str(folder / row[key])
    return table


def _overlay(base: dict[str, Any], top: dict[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in top.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = _overlay(result[key], value)
        else:
            result[key] = value
    return result
