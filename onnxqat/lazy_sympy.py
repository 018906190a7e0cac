"""onnx_ir without its half second for sympy: sympy is loaded when a symbolic dimension is computed with, not before.

onnx_ir imports sympy at the top, for arithmetic on symbolic dimensions that most runs never do. :func:`install` makes the
next import of onnx_ir, whoever asks for it, find a :class:`Deferred` in place of sympy and of the one module of its own
that uses sympy while it is imported. The first access to an attribute of a stand-in imports the real module, in the
ordinary way. So nothing changes but the time, and only for onnx_ir: to everybody else ``import sympy`` is what it was.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import threading
import types
from collections.abc import Sequence
from typing import Any

IMPORTER = "onnx_ir"
DEFERRED = ("sympy", "onnx_ir._symbolic_shapes")

_lock = threading.Lock()


class Deferred(types.ModuleType):
    """A module that is imported at the first access to one of its attributes."""

    def __getattr__(self, name: str) -> Any:
        self.withdraw()
        found = getattr(importlib.import_module(self.__name__), name)
        setattr(self, name, found)
        return found

    def withdraw(self) -> None:
        """Leave ``sys.modules``, so that the next import of this name is that of the real module."""
        with _lock:
            if sys.modules.get(self.__name__) is self:
                del sys.modules[self.__name__]


class _Loader(importlib.abc.Loader):
    """Executes the importer as its own loader does, with stand-ins in ``sys.modules`` for as long as that takes."""

    def __init__(self, real: importlib.abc.Loader) -> None:
        self.real = real

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        return self.real.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__loader__ = self.real
        if module.__spec__ is not None:
            module.__spec__.loader = self.real
        stand_ins = [Deferred(name) for name in DEFERRED if "sympy" not in sys.modules]
        sys.modules.update({stand_in.__name__: stand_in for stand_in in stand_ins})
        try:
            self.real.exec_module(module)
        finally:
            for stand_in in stand_ins:
                stand_in.withdraw()


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the importer where the other finders find it, and puts :class:`_Loader` around its loader."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != IMPORTER:
            return None
        others = (f for f in sys.meta_path if f is not self)
        spec = next((s for f in others if (s := f.find_spec(fullname, path, target)) is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


def install() -> None:
    """Defer sympy for the import of onnx_ir that is to come; nothing happens where either is there already."""
    known = any(isinstance(finder, _Finder) for finder in sys.meta_path)
    if not known and not {IMPORTER, "sympy"} & sys.modules.keys():
        sys.meta_path.insert(0, _Finder())
