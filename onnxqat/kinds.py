"""All kinds of extensions that can be tried: the name that marks a file of the kind, and the module of its check."""

from __future__ import annotations

import ast
import dataclasses
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from onnxqat import extension
from onnxqat.errors import UsageError
from onnxqat.promises import ExtensionCheck


@dataclasses.dataclass(frozen=True)
class _Row:
    """One kind.

    Attributes:
        mark: class or constant that a file of the kind has; empty for passes, which are called as they like.
        kind: module with its ``KIND``.
        check: module with a function ``check(name)``.
        in_torch: whether both need torch.
    """

    mark: str
    kind: str
    check: str
    in_torch: bool = False


_ROWS = {
    "pass": _Row("", "onnxqat.pipeline.lookup", "onnxqat.pipeline.check"),
    "observer": _Row("Observer", "onnxqat.calibration.observers", "onnxqat.calibration.observers._check"),
    "method": _Row("Method", "onnxqat.training.methods._found", "onnxqat.training.methods._check", in_torch=True),
    "compiler": _Row("Compiler", "onnxqat.deployment.base_compiler", "onnxqat.deployment.compiler_check"),
    "metric": _Row("Metric", "onnxqat.metrics._score", "onnxqat.metrics._check"),
    "rules": _Row("RULES", "onnxqat.linting.lint", "onnxqat.linting.rule_check"),
    "callback": _Row(
        "Callback", "onnxqat.training.callbacks._found", "onnxqat.training.callbacks._check", in_torch=True
    ),
    "loss": _Row("loss", "onnxqat.training.objective._found", "onnxqat.training.objective._check", in_torch=True),
    "preprocess": _Row("preprocess", "onnxqat.data.preprocess_file", "onnxqat.data.preprocess_check"),
}
KINDS = (*_ROWS,)


def check_extension(name: str, kind: str | None = None) -> ExtensionCheck:
    """Try an extension on small models and data, and say which promises of its kind it keeps.

    Args:
        name: path of a Python file; with `kind` also a name of one that is installed.
        kind: one of :data:`KINDS`; found by what the file defines where it is None.

    Raises:
        UsageError: ``name-unknown``, with the closest names that exist; ``option-invalid`` for a file that is missing,
            cannot be imported, or may be of several kinds; ``dependency-missing``.
    """
    return cast(ExtensionCheck, importlib.import_module(_ROWS[kind or kind_of(name)].check).check(name))


def kind_of(name: str) -> str:
    """The kind of the file `name`, by the names that it defines or imports at its top; a pass where none is a mark.

    Raises:
        UsageError: ``option-invalid``: it is no file, or has the marks of several kinds.
    """
    if not extension.is_file(name):
        raise UsageError("option-invalid", f"{name} is no Python file", hint=f"say of which kind: {', '.join(KINDS)}")
    defined = set(_defined(Path(name)))
    found = [kind for kind, row in _ROWS.items() if row.mark in defined]
    if len(found) > 1:
        marks = " and ".join(_ROWS[kind].mark for kind in found)
        raise UsageError("option-invalid", f"{name} has {marks}", hint=f"say which to try: {', '.join(found)}")
    return found[0] if found else "pass"


def names(kind: str) -> list[str]:
    """Names of the installed extensions of `kind`, those of other packages last."""
    return extension.names(importlib.import_module(_ROWS[kind].kind).KIND)


def needs_torch(kind: str) -> bool:
    """Check whether extensions of `kind` are torch modules."""
    return _ROWS[kind].in_torch


def _defined(path: Path) -> Iterator[str]:
    """Names at the top of a Python file; none of one that cannot be read, which its kind's look-up says better."""
    try:
        body = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return
    for statement in body:
        if isinstance(statement, (ast.ClassDef, ast.FunctionDef)):
            yield statement.name
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            yield from (alias.asname or alias.name for alias in statement.names)
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))
