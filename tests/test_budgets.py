"""Files and functions stay short; what is public says what it does and what it returns."""

import ast
from collections.abc import Iterator

from tests.source_tree import REPOSITORY, package_files, parse

LONGEST_FILE = 500
LONGEST_FUNCTION = 60

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def public_definitions(body: list[ast.stmt]) -> Iterator[Definition]:
    """Public functions and classes of a module, and the public methods of its public classes."""
    for node in body:
        if isinstance(node, Definition) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from public_definitions(node.body)


def decorators(node: Definition) -> set[str]:
    """Last name of each decorator: ``overload`` for ``@typing.overload``."""
    return {ast.unparse(decorator).split("(")[0].rpartition(".")[2] for decorator in node.decorator_list}


def test_files_are_short() -> None:
    lengths = {str(path.relative_to(REPOSITORY)): len(path.read_text().splitlines()) for path in package_files()}
    assert {name: length for name, length in lengths.items() if length > LONGEST_FILE} == {}


def test_functions_are_short() -> None:
    long = {}
    for path in package_files():
        for node in ast.walk(parse(path)):
            if isinstance(node, Function):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > LONGEST_FUNCTION:
                    long[f"{path.relative_to(REPOSITORY)}:{node.lineno} {node.name}"] = length
    assert long == {}


def test_public_names_are_documented() -> None:
    missing = [
        f"{path.relative_to(REPOSITORY)}:{node.lineno} {node.name}"
        for path in package_files()
        for node in public_definitions(parse(path).body)
        if not ast.get_docstring(node) and not decorators(node) & {"overload", "override", "setter"}
    ]
    assert missing == []


def test_modules_are_documented() -> None:
    assert [str(path.relative_to(REPOSITORY)) for path in package_files() if not ast.get_docstring(parse(path))] == []


def test_public_functions_state_what_they_return() -> None:
    missing = [
        f"{path.relative_to(REPOSITORY)}:{node.lineno} {node.name}"
        for path in package_files()
        for node in public_definitions(parse(path).body)
        if isinstance(node, Function) and node.returns is None
    ]
    assert missing == []
