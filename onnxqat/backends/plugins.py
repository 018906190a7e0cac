"""Tables of other packages, found by entry points of the group ``onnxqat.backends``.

``my-chip = "vendor.tables"`` names a package that holds ``my_chip.yaml``; ``my-chip = "vendor.tables:PATH"`` an
attribute of it that is the path of a table. Nothing is looked up for names that this package has.
"""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from types import ModuleType

from onnxqat import extension
from onnxqat.errors import BackendError, UsageError

GROUP = "onnxqat.backends"


def names() -> list[str]:
    """Names of such tables, sorted."""
    return extension.offered(GROUP)


def find(name: str) -> Path | None:
    """Path of the table called `name`, None where no package has one.

    Raises:
        BackendError: ``backend-table``: its package cannot be imported, or holds no such file.
    """
    entry = extension.entry_point(GROUP, name)
    return None if entry is None else _path(entry)


def _path(entry: importlib.metadata.EntryPoint) -> Path:
    try:
        found = extension.loaded(entry)
        path = _beside(found, entry.name) if isinstance(found, ModuleType) else Path(found)
    except UsageError as error:
        raise BackendError("backend-table", error.message) from None
    except TypeError as error:  # it names neither a package nor a path
        raise BackendError("backend-table", f"{extension.stated(entry)}: {error}") from None
    if not path.is_file():
        raise BackendError("backend-table", f"{extension.stated(entry)}: there is no file {path}")
    return path


def _beside(package: ModuleType, name: str) -> Path:
    return Path(str(package.__file__)).parent / f"{name.replace('-', '_')}.yaml"
