"""Choice of the compiler of a backend: its table names it."""

from __future__ import annotations

from collections.abc import Mapping

from onnxqat import extension
from onnxqat.backends import schema
from onnxqat.deployment import base_compiler
from onnxqat.deployment.base_compiler import BaseCompiler
from onnxqat.errors import UsageError
from onnxqat.types import Remark


def lineage(table: schema.Backend) -> list[str]:
    """The compiler that a table names as its `route`, its own name, then the same of the tables that it extends."""
    found = []
    current: schema.Backend | None = table
    while current is not None:
        found += [current.route, current.backend]
        current = None if current.extends is None else schema.load(current.extends)
    return [name for name in dict.fromkeys(found) if name]


def tables_of(compiler: str) -> list[str]:
    """Names of the built-in tables that belong to `compiler`, those that extend no other one first."""
    known = base_compiler.names()
    tables = [schema.load(name) for name in schema.names()]
    mine = [t for t in tables if next((n for n in lineage(t) if n in known), None) == compiler]
    return [t.backend for t in sorted(mine, key=lambda t: (t.extends is not None, t.backend))]


def expected(table: schema.Backend) -> BaseCompiler | None:
    """The compiler of a backend, installed or not: the first of its :func:`lineage` that there is."""
    known = base_compiler.names()
    found = next((n for n in lineage(table) if n in known or extension.is_file(n)), None)
    return None if found is None else base_compiler.load(found, table.session)


def named(name: str, options: Mapping[str, str] | None = None) -> BaseCompiler:
    """The compiler called `name`, installed or not.

    Raises:
        UsageError: ``name-unknown``, for the name of a backend with that of its compiler; ``option-invalid`` for a file
            without a compiler.
    """
    try:
        return base_compiler.load(name, options)
    except UsageError as error:
        own = expected(schema.load(name)) if error.code == "name-unknown" and name in schema.names() else None
        if own is None:
            raise
        text = f"{name!r} is the name of a backend, not of a compiler"
        raise UsageError(error.code, text, hint=f"its compiler is {own.name}") from None


def compiler_of(table: schema.Backend, remarks: list[Remark], name: str | None = None) -> BaseCompiler | None:
    """The installed compiler of a backend: the first of its :func:`lineage` that there is, or the one called `name`.

    None, with a remark, where onnxqat drives no compiler for it, or where it is not installed.

    Raises:
        UsageError: ``name-unknown``, and ``dependency-missing`` for a compiler asked for by name.
    """
    if name is not None:
        asked = named(name, table.session)
        if asked.version() is None:
            raise asked.missing()
        return asked
    compiler = expected(table)
    if compiler is None:
        text = f"onnxqat drives no compiler for {table.backend}: the deploy form was written, nothing was compiled"
        remarks.append(Remark(text, source="handoff"))
        return None
    if compiler.version() is None:
        error = compiler.missing()
        remarks.append(Remark(f"nothing was compiled: {error.message} ({error.hint})", source="handoff"))
        return None
    return compiler


def with_threads(compiler: BaseCompiler | None, threads: int | None, remarks: list[Remark]) -> BaseCompiler | None:
    """`compiler` set to run on that many `threads`; with a remark where it does not take a number of them."""
    if compiler is not None and threads is not None:
        compiler.threads = threads if compiler.takes_threads else None
        if not compiler.takes_threads:
            remarks.append(Remark(f"{compiler.name} takes no number of threads", source="handoff"))
    return compiler
