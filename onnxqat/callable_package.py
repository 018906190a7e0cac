"""A package that can be called like the public function of its name.

``onnxqat.handoff`` and ``onnxqat.lint`` are functions and packages. Python sets the attribute of the parent to the
package when the package is first imported, whatever stood there, so the package has to act as the function too.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import types
from typing import Any


class _CallablePackage(types.ModuleType):
    """A module whose call is a call of the function of its name, in its module of that name."""

    def _function(self) -> Any:
        name = self.__name__.rpartition(".")[2]
        return getattr(importlib.import_module(f"{self.__name__}.{name}"), name)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._function()(*arguments, **options)

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]  # a module has text; this one's is the function's
        return inspect.getdoc(self._function())

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._function())


def make_callable(name: str) -> None:
    """Make calls of package `name` calls of its function, which lies in the file of the same name.

    Args:
        name: ``__name__`` of the package, from its ``__init__``.
    """
    sys.modules[name].__class__ = _CallablePackage
