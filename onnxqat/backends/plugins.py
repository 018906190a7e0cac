"""Tables of other packages, found by entry points of the group ``onnxqat.backends``.

``my-chip = "vendor.tables"`` names a package that holds ``my_chip.yaml``; ``my-chip = "vendor.tables:PATH"`` an
attribute of it that is the path of a table. Nothing is looked up for names that this package has.
"""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from types import ModuleType

from onnxqat.errors import BackendError

GROUP = "onnxqat.backends"


def names() -> list[str]:
    """Names of such tables, sorted."""
    return sorted(_key(entry.name) for entry in importlib.metadata.entry_points(group=GROUP))


def find(name: str) -> Path | None:
    """Path of the table called `name`, None where no package has one.

    Raises:
        BackendError: ``backend-table``: its package cannot be imported, or holds no such file.
    """
    for entry in importlib.metadata.entry_points(group=GROUP):
        if _key(entry.name) == _key(name):
            return _path(entry)
    return None


def _path(entry: importlib.metadata.EntryPoint) -> Path:
    stated = f"entry point {entry.name} = {entry.value!r}"
    try:
        found = entry.load()
        if isinstance(found, ModuleType):
            folder = Path(str(found.__file__)).parent
            path = folder / f"{_key(entry.name).replace('-', '_')}.yaml"
        else:
            path = Path(found)
    except Exception as error:  # whatever a foreign package does when it is imported
        raise BackendError("backend-table", f"{stated}: {type(error).__name__}: {error}") from None
    if not path.is_file():
        raise BackendError("backend-table", f"{stated}: there is no file {path}")
    return path


def _key(name: str) -> str:
    return name.replace("_", "-")
