"""Files and functions stay short; what is public says what it does and what it returns."""

import ast
import functools
from collections.abc import Iterator

from tests.source_tree import REPOSITORY, nodes, package_files, parse

LONGEST_FILE = 500
LONGEST_FUNCTION = 60
LONGEST_UNDOCUMENTED = 20

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@functools.cache
def classes() -> dict[str, ast.ClassDef]:
    """Classes of the package by name."""
    files = package_files()
    return {node.name: node for path in files for node in nodes(path) if isinstance(node, ast.ClassDef)}


def public_definitions(body: list[ast.stmt]) -> Iterator[Definition]:
    """Public functions and classes of a module or class, not those inside them."""
    yield from (node for node in body if isinstance(node, Definition) and not node.name.startswith("_"))


def inherits_documentation(class_: ast.ClassDef, method: str) -> bool:
    """Whether a base class documents `method`; classes of other packages and namesakes are taken to."""
    for base in class_.bases:
        name = ast.unparse(base).split("[")[0].rpartition(".")[2]
        if name in {"ABC", "Protocol", "Generic", "NamedTuple", "Enum", "BaseModel", "object"}:
            continue
        found = classes().get(name, class_)
        if found is class_:  # of another package, or a namesake in another file
            return True
        own = [n for n in found.body if isinstance(n, Function) and n.name == method]
        if any(map(ast.get_docstring, own)) or inherits_documentation(found, method):
            return True
    return False


def undocumented(body: list[ast.stmt]) -> Iterator[Definition]:
    """Public functions, classes and methods without a docstring of their own or of a base class."""
    for node in public_definitions(body):
        if isinstance(node, ast.ClassDef):
            accepted = {n.name for n in node.body if isinstance(n, Function) and inherits_documentation(node, n.name)}
            yield from (n for n in undocumented(node.body) if n.name not in accepted)
        if not ast.get_docstring(node) and not decorators(node) & {"overload", "override", "setter"}:
            yield node


def decorators(node: Definition) -> set[str]:
    """Last name of each decorator: ``overload`` for ``@typing.overload``."""
    return {ast.unparse(decorator).split("(")[0].rpartition(".")[2] for decorator in node.decorator_list}


def test_files_are_short() -> None:
    lengths = {str(path.relative_to(REPOSITORY)): len(path.read_text().splitlines()) for path in package_files()}
    assert {name: length for name, length in lengths.items() if length > LONGEST_FILE} == {}


def code_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of the body: signature and docstring, which state the interface, do not count."""
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    return (node.end_lineno or node.lineno) - body[0].lineno + 1 if body else 0


def test_functions_are_short() -> None:
    long = {}
    for path in package_files():
        for node in nodes(path):
            if isinstance(node, Function):
                length = code_lines(node)
                if length > LONGEST_FUNCTION:
                    long[f"{path.relative_to(REPOSITORY)}:{node.lineno} {node.name}"] = length
    assert long == {}


def test_public_names_are_documented() -> None:
    missing = [
        f"{path.relative_to(REPOSITORY)}:{node.lineno} {node.name}"
        for path in package_files()
        for node in undocumented(parse(path).body)
    ]
    assert missing == []


def test_long_private_functions_are_documented() -> None:
    """A short one is read faster than a sentence about it; special methods do what Python says that they do."""
    missing = [
        f"{path.relative_to(REPOSITORY)}:{node.lineno} {node.name}"
        for path in package_files()
        for node in nodes(path)
        if isinstance(node, Function) and node.name.startswith("_") and not node.name.startswith("__")
        if (node.end_lineno or 0) - node.lineno >= LONGEST_UNDOCUMENTED and not ast.get_docstring(node)
    ]
    assert missing == []


def test_modules_are_documented() -> None:
    assert [str(path.relative_to(REPOSITORY)) for path in package_files() if not ast.get_docstring(parse(path))] == []


def test_public_functions_state_what_they_return() -> None:
    missing = [
        f"{path.relative_to(REPOSITORY)}:{node.lineno} {node.name}"
        for path in package_files()
        for node in nodes(path)
        if isinstance(node, Function) and not node.name.startswith("_") and node.returns is None
    ]
    assert missing == []
