"""Find an extension: a file of a package folder, a file of the user's, or another package's entry point.

Each kind of extension (a method, an observer, a pass, ...) has one :class:`Kind` beside its base class. A name is looked
up in this order:

1. a name that ends in ``.py`` is the path of a file, which is run as a module of its own;
2. a public module of the kind's folder, ``-`` and ``_`` being the same;
3. an entry point ``my-name = "package.module"`` of the kind's group, in any installed package.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from onnxqat import discover
from onnxqat.errors import QatError, UsageError
from onnxqat.graph import files_read

SUFFIX = ".py"
_FILES = "onnxqat_extensions"  # parent of the modules that are made of files: a pickle imports the parent first


@dataclasses.dataclass(frozen=True)
class Kind:
    """One kind of extension.

    Attributes:
        name: in the singular, as messages call it: ``method``.
        package: the folder with those of onnxqat; empty where none of onnxqat is used by its name.
        group: entry points of other packages.
        lacks: says what a module lacks to be one of this kind, as in "there is no class Method"; None for one that is.
        page: the page that says how to write one.
        elsewhere: names that other tools have for those of onnxqat, see :func:`onnxqat.discover.unknown`.
    """

    name: str
    package: str
    group: str
    lacks: Callable[[ModuleType], str | None]
    page: str
    elsewhere: Mapping[str, str] = dataclasses.field(default_factory=dict)


def class_named(attribute: str, base: Callable[[], type]) -> Callable[[ModuleType], str | None]:
    """A check for :attr:`Kind.lacks`: the module has a class `attribute` that is a subclass of what `base` gives."""

    def lacks(module: ModuleType) -> str | None:
        found, wanted = getattr(module, attribute, None), base()
        if isinstance(found, type) and issubclass(found, wanted):
            return None
        return f"there is no class {attribute} that is a {wanted.__name__}"

    return lacks


@functools.lru_cache(maxsize=256)  # a pipeline makes its passes anew for each model
def lacking_arguments(found: Callable[..., Any]) -> str | None:
    """Python's words on the arguments that `found` cannot be called without; None where there are none."""
    try:
        inspect.signature(found).bind()
    except TypeError as error:
        return str(error)
    return None


def own(module: ModuleType, fits: Callable[[Any], bool]) -> list[Any]:
    """Public objects that `module` itself defines and that fit; only those of the file's name, where it has any."""
    found = [
        value
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__ and fits(value)
    ]
    stem = _plain(module.__name__.rpartition(".")[2])
    return [value for value in found if _plain(value.__name__) == stem] or found


def load(kind: Kind, name: str) -> ModuleType:
    """The module of the extension `name` of this kind: a name, or the path of a file that ends in ``.py``.

    Raises:
        UsageError: ``name-unknown``, with the closest names that exist; ``option-invalid`` for a file that is missing,
            cannot be imported or lacks what this kind needs.
    """
    if is_file(name):
        return _checked(kind, _of_file(kind, Path(name)), name)
    key = name.replace("-", "_")
    if kind.package and discover.holds(kind.package, key):
        return discover.load(kind.package, key)
    entry = entry_point(kind.group, name)
    if entry is not None:
        return _of_entry(kind, entry)
    raise discover.unknown(kind.name, name, names(kind), kind.elsewhere)


def names(kind: Kind) -> list[str]:
    """Names that :func:`load` takes, with ``-``: those of onnxqat, then those of other packages."""
    own = [_key(name) for name in discover.names(kind.package)] if kind.package else []
    return own + [name for name in offered(kind.group) if name not in own]


def installed(kind: Kind) -> Iterator[ModuleType]:
    """The extensions of other packages, by name; for kinds of which all there are take part.

    Raises:
        UsageError: ``option-invalid``: one cannot be imported or lacks what this kind needs.
    """
    for entry in sorted(importlib.metadata.entry_points(group=kind.group), key=lambda entry: entry.name):
        yield _of_entry(kind, entry)


def blamed(kind: Kind, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` of the extension `name`, whose own errors come as ``extension-failed``; those of onnxqat as they are."""

    @functools.wraps(function)
    def run(*arguments: Any, **keywords: Any) -> Any:
        try:
            return function(*arguments, **keywords)
        except QatError:
            raise
        except Exception as error:  # whatever a foreign function does
            raise _failed(kind, name, error) from error

    return run


def _failed(kind: Kind, name: str, error: Exception) -> UsageError:
    """The error for one that the extension `name` raised: its first line, and the place in the user's file."""
    place = next(
        (
            each
            for each in reversed(traceback.extract_tb(error.__traceback__))
            if each.filename.endswith(Path(name).name)
        ),
        None,
    )
    line = f", line {place.lineno}" if place is not None and is_file(name) else ""
    said = f"{type(error).__name__}: {error}".splitlines()[0]
    return UsageError(
        "extension-failed", f"the {kind.name} {name}{line}: {said}", hint=f"onnxqat extensions check {name}"
    )


def is_file(name: str) -> bool:
    """Tell if `name` is the path of a user's file."""
    return name.endswith(SUFFIX)


def key_of(name: str) -> str:
    """Return the name of an extension for records: `name` itself, or the stem of a user's file."""
    return Path(name).stem if is_file(name) else name


def offered(group: str) -> list[str]:
    """Names of the entry points of `group`, sorted, with ``-``, each once."""
    return sorted({_key(entry.name) for entry in importlib.metadata.entry_points(group=group)})


def entry_point(group: str, name: str) -> importlib.metadata.EntryPoint | None:
    """The entry point of `group` called `name`, ``-`` and ``_`` being the same; None where no package has one."""
    found = (entry for entry in importlib.metadata.entry_points(group=group) if _key(entry.name) == _key(name))
    return next(found, None)


def loaded(entry: importlib.metadata.EntryPoint) -> Any:
    """Load the object that `entry` names.

    Raises:
        UsageError: ``option-invalid``: its package cannot be imported.
    """
    try:
        return entry.load()
    except Exception as error:  # whatever a foreign package does when it is imported
        raise UsageError("option-invalid", f"{stated(entry)}: {type(error).__name__}: {error}") from None


def stated(entry: importlib.metadata.EntryPoint) -> str:
    """Return `entry` as messages name it."""
    return f"entry point {entry.name} = {entry.value!r}"


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def _key(name: str) -> str:
    return name.replace("_", "-")


def _of_file(kind: Kind, path: Path) -> ModuleType:
    """The module that `path` makes: the same one until the file changes, and one that a pickle finds by its name."""
    if not path.is_file():
        raise UsageError("option-invalid", f"there is no {kind.name} file {str(path)!r}")
    path = path.resolve()
    files_read.note(path, f"the {kind.name}")
    # Files of one name in two folders are two modules; the last part is the file's, for classes named by their module.
    folder = hashlib.sha256(str(path.parent).encode("utf-8", "surrogateescape")).hexdigest()[:12]
    name = f"{_FILES}.{kind.name}_{folder}.{path.stem}"
    known = sys.modules.get(name)
    written = path.stat().st_mtime_ns
    if known is not None and known.__dict__.get("_read") == written:
        return known
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(_FILES, ModuleType(_FILES))
    sys.modules[name] = module
    module.__dict__["_read"] = written
    try:
        spec.loader.exec_module(module)
    except QatError:
        del sys.modules[name]
        raise
    except Exception as error:  # whatever a foreign file does when it is run
        del sys.modules[name]
        raise UsageError("option-invalid", f"{path}: {type(error).__name__}: {error}", hint=_see(kind)) from None
    return module


def _of_entry(kind: Kind, entry: importlib.metadata.EntryPoint) -> ModuleType:
    return _checked(kind, loaded(entry), stated(entry))


def _checked(kind: Kind, module: Any, name: str) -> ModuleType:
    if not isinstance(module, ModuleType):
        raise UsageError("option-invalid", f"{name}: it is no module", hint=_see(kind))
    missing = kind.lacks(module)
    if missing is not None:
        raise UsageError("option-invalid", f"{name}: {missing}", hint=_see(kind))
    return module


def _see(kind: Kind) -> str:
    return f"see {kind.page}"
