"""The package's files as the tests of the source see them."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]


def package_files() -> list[Path]:
    """Python files of the package: those of ``onnxqat/`` without the link, and those of ``passes/``."""
    linked = REPOSITORY / "onnxqat" / "passes"
    own = [path for path in (REPOSITORY / "onnxqat").rglob("*.py") if linked not in path.parents]
    return sorted([*own, *(REPOSITORY / "passes").rglob("*.py")])


def module_name(path: Path) -> str:
    """Dotted name under which a file of :func:`package_files` is imported."""
    parts = list(path.relative_to(REPOSITORY).with_suffix("").parts)
    if parts[0] == "passes":
        parts.insert(0, "onnxqat")
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def parse(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@functools.cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of a file's tree: several tests walk the whole package."""
    return tuple(ast.walk(parse(path)))


def imported(node: ast.AST) -> list[str]:
    """Modules that an import statement names; ``from a import b`` gives ``a.b``, as b may be a module."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def run_at_import(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run when a module is imported, those inside if, try and class included."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test):
            yield from run_at_import(statement.orelse)
            continue
        for field in ("body", "orelse", "finalbody"):
            yield from run_at_import(getattr(statement, field, []))
        for handler in getattr(statement, "handlers", []):
            yield from run_at_import(handler.body)
