"""Look-up of a pass: a file of ``passes/``, a file of the user's, an entry point, a class, an object or a function.

A pass file has a subclass of ``Pass``, or a function of one argument, an ``onnx_ir.Model`` or a graphsurgeon ``Graph``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeAlias

from onnxqat import extension
from onnxqat.errors import UsageError
from onnxqat.passes._base import Pass
from onnxqat.passes._function import FunctionPass
from onnxqat.passes._graphsurgeon import GsPass
from onnxqat.passes._setting import Setting

PassSource: TypeAlias = "str | Pass | type[Pass] | Callable[[Any], Any]"
"""A pass as users give it: a name or the path of a file, an object, a class, or a function."""


def _lacks(module: ModuleType) -> str | None:
    try:
        _of_module(module)
    except ValueError as error:
        return str(error)
    return None


KIND = extension.Kind(
    name="pass", package="onnxqat.passes", group="onnxqat.passes", lacks=_lacks, page="docs/passes.md"
)


def find(source: PassSource) -> Pass | type[Pass]:
    """The pass that `source` names or is; a class is left for :func:`made` to make an object of.

    Raises:
        UsageError: ``name-unknown``, with the closest names that exist; ``option-invalid``: a file without a pass, or
            a function of which is not clear what it takes.
    """
    if isinstance(source, str):
        return _of_module(extension.load(KIND, source))
    if isinstance(source, Pass) or (isinstance(source, type) and issubclass(source, Pass)):
        return source
    if not callable(source):
        raise UsageError("option-invalid", f"{source!r} is no pass", hint="give a Pass, a function, a name or a file")
    try:
        return _of_function(source)
    except ValueError as error:
        raise UsageError("option-invalid", str(error), hint=f"see {KIND.page}") from None


def made(found: Pass | type[Pass], setting: Setting | None = None) -> Pass | None:
    """The object that runs: made for `setting`, which it may have no part in (None), or without arguments.

    Raises:
        UsageError: ``option-invalid``: the pass cannot be made without arguments.
    """
    if isinstance(found, Pass):
        return found
    if setting is not None and any("for_backend" in vars(kind) for kind in found.__mro__ if kind is not Pass):
        return found.for_backend(setting)
    lacks = extension.lacking_arguments(found)
    if lacks is not None:
        text = f"pass {found.name} cannot be made without arguments: {lacks}"
        raise UsageError("option-invalid", text, hint="give it in Python, as an object with its arguments")
    return found()


def _of_module(module: ModuleType) -> Pass | type[Pass]:
    """The pass of a file.

    Raises:
        ValueError: there is none, or more than one and none has the file's name.
    """
    for fits in (_is_pass, inspect.isfunction):
        found = extension.own(module, fits)
        if len(found) == 1:
            return found[0] if isinstance(found[0], type) else _of_function(found[0])
        if found:
            names = ", ".join(v.__name__ for v in found)
            raise ValueError(f"it has several passes, and none has the file's name: {names}")
    raise ValueError("there is neither a subclass of Pass nor a function on a model")


def _is_pass(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Pass) and not inspect.isabstract(value)


def _of_function(function: Callable[[Any], Any]) -> Pass:
    """A pass of a function, by the annotation of its one parameter, or by the parameter's name.

    Raises:
        ValueError: it takes something else.
    """
    parameters = list(inspect.signature(function).parameters.values())
    needed = [p for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    name = getattr(function, "__name__", repr(function))
    if len(needed) != 1:
        raise ValueError(f"{name}() does not take one argument, the model")
    stated = needed[0].annotation
    for text in (getattr(stated, "__name__", str(stated)), needed[0].name):
        kind = text.rpartition(".")[2].strip("'\"").lower()
        if kind == "graph":
            return GsPass(function)
        if kind == "model":
            return FunctionPass(function)
    raise ValueError(
        f"{name}({needed[0]}): call the argument `model` for an onnx_ir.Model, `graph` for a graphsurgeon one"
    )
