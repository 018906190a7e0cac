"""Look-up of a callback: a file of the user's, or another package's entry point.

A callback file has a subclass of :class:`onnxqat.training.callbacks.callback.Callback` that is made without arguments.
The callbacks of onnxqat have arguments and options of their own.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from types import ModuleType
from typing import Any, TypeAlias

from onnxqat import extension
from onnxqat.errors import UsageError
from onnxqat.training.callbacks.callback import Callback

CallbackSource: TypeAlias = "str | Callback"
"""A callback as users give it: an object, the path of a file, or the name of an entry point."""

HOOKS = tuple(name for name, value in vars(Callback).items() if inspect.isfunction(value))
"""Methods that a callback may override."""


def _lacks(module: ModuleType) -> str | None:
    found = extension.own(module, _is_callback)
    if len(found) == 1:
        return None
    if not found:
        return "there is no subclass of Callback"
    names = ", ".join(each.__name__ for each in found)
    return f"it has several callbacks, and none has the file's name: {names}"


KIND = extension.Kind(
    name="callback", package="", group="onnxqat.callbacks", lacks=_lacks, page="docs/training_loop.md"
)


def made(sources: Sequence[CallbackSource]) -> tuple[Callback, ...]:
    """Make a callback of each source; errors that those of files raise name the file.

    Raises:
        UsageError: ``name-unknown``; ``option-invalid`` for a file without a callback, one that needs arguments, or
            something else than a callback; ``extension-failed``: it raises when it is made.
    """
    return tuple(_made(each) for each in sources)


def _made(source: Any) -> Callback:
    if isinstance(source, Callback):
        return source
    if not isinstance(source, str):
        text = f"{source!r} is no callback"
        raise UsageError("option-invalid", text, hint="give an object of a subclass of Callback, or a file")
    (found,) = extension.own(extension.load(KIND, source), _is_callback)
    lacks = extension.lacking_arguments(found)
    if lacks is not None:
        text = f"callback {source} cannot be made without arguments: {lacks}"
        raise UsageError("option-invalid", text, hint="give defaults, or the object itself in Python")
    callback: Callback = extension.blamed(KIND, source, found)()
    for hook in HOOKS:
        if getattr(found, hook) is not getattr(Callback, hook):
            setattr(callback, hook, extension.blamed(KIND, source, getattr(callback, hook)))
    return callback


def _is_callback(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Callback) and not inspect.isabstract(value)
