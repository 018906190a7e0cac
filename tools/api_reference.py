"""Write docs/api.md: signature and docstring of every public function and class.

python tools/api_reference.py            # writes the page
python tools/api_reference.py --check    # exit status 1 where the page is stale

Sources are read and not imported, so that the page is the same whatever is installed.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import onnxqat  # noqa: E402
from onnxqat import extend  # noqa: E402

PAGE = ROOT / "docs" / "api.md"
SECTIONS = ("Args", "Attributes", "Returns", "Raises", "Yields")
Definition = ast.FunctionDef | ast.ClassDef

INTRODUCTION = """# API reference

Written by `tools/api_reference.py` from the docstrings; a test fails when it is stale. [Python](python.md) shows how the functions go together, [Extending](extending.md) what the base classes are for.

What is listed here is public: [Stability](stability.md) says what that promises.

## Functions and settings

`import onnxqat`, then `onnxqat.NAME`.
"""

EXTENDING = """
## For extensions

`from onnxqat.extend import NAME`.
"""


def source_of(module: str) -> Path:
    """The file of a module; those of onnxqat.passes lie in passes/."""
    parts = module.split(".")
    base = ROOT / "passes" if parts[:2] == ["onnxqat", "passes"] else ROOT / "onnxqat"
    path = base.joinpath(*parts[2 if base.name == "passes" else 1 :])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def definition(module: str, name: str) -> Definition | None:
    """The definition of `name`, not its overloads, in the module or where that has it from; None: it is a constant."""
    for node in ast.parse(source_of(module).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module and name in [each.name for each in node.names]:
            return definition(node.module, name)
        overloads = isinstance(node, Definition) and [ast.unparse(mark) for mark in node.decorator_list]
        if (
            isinstance(node, Definition)
            and node.name == name
            and not any(str(m).endswith("overload") for m in overloads or ())
        ):
            return node
    return None


def signature(node: ast.FunctionDef, name: str) -> str:
    """The function with its arguments, one a line where they are many."""
    given = node.args
    positional = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(positional) - len(given.defaults)) + list(given.defaults)
    found = [_argument(a, d) for a, d in zip(positional, defaults, strict=True) if a.arg not in ("self", "cls")]
    if given.vararg:
        found.append("*" + _argument(given.vararg, None))
    elif given.kwonlyargs:
        found.append("*")
    found += [_argument(a, d) for a, d in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    if given.kwarg:
        found.append("**" + _argument(given.kwarg, None))
    back = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    line = f"{name}({', '.join(found)}){back}"
    return line if len(line) <= 100 else f"{name}(\n" + "".join(f"    {each},\n" for each in found) + f"){back}"


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    text = argument.arg + (f": {ast.unparse(argument.annotation)}" if argument.annotation is not None else "")
    return text if default is None else f"{text} = {ast.unparse(default)}"


def markdown(docstring: str) -> str:
    """A docstring in Google's style as Markdown: sections become bold words with a list below."""
    text = re.sub(r":(?:func|class|meth|mod|data|attr):`~?([^`]+)`", r"`\1`", inspect.cleandoc(docstring))
    text = re.sub(r"``([^`]+)``", r"`\1`", text)
    lines: list[str] = []
    section = False
    for line in text.splitlines():
        if line.rstrip(":") in SECTIONS and line.endswith(":"):
            lines += ["", f"**{line[:-1]}**", ""]
            section = True
        elif section and re.match(r"    \S", line):
            entry = re.match(r"    ([\w*][\w*, ]*):\s*(.*)", line)
            lines.append(f"- `{entry[1]}`: {entry[2]}" if entry else f"- {line.strip()}")
        elif section and line.strip():
            lines.append("  " + line.strip())
        else:
            section = section and not line.strip()
            lines.append(line)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def members(node: ast.ClassDef) -> Iterator[str]:
    """Public methods of a class that have a docstring, each with its signature."""
    for each in node.body:
        if isinstance(each, ast.FunctionDef) and not each.name.startswith("_") and ast.get_docstring(each):
            if any(ast.unparse(mark).split(".")[-1] in ("property", "cached_property") for mark in each.decorator_list):
                head = each.name + (f": {ast.unparse(each.returns)}" if each.returns is not None else "")
            else:
                head = signature(each, each.name)
            yield f"```text\n{head}\n```\n\n{markdown(ast.get_docstring(each) or '')}\n"


def fields(node: ast.ClassDef) -> str:
    """Fields of a dataclass with types and defaults."""
    if not any("dataclass" in ast.unparse(mark) for mark in node.decorator_list):
        return ""
    rows = [each for each in node.body if isinstance(each, ast.AnnAssign)]
    return "```text\n" + "".join(ast.unparse(row) + "\n" for row in rows) + "```\n\n" if rows else ""


def entry(module: str, name: str) -> str:
    """One name with what it is."""
    node = definition(module, name)
    if node is None:
        return ""
    text = markdown(ast.get_docstring(node) or "")
    if isinstance(node, ast.ClassDef):
        own = "\n".join(members(node))
        return f"### {name}\n\n{fields(node)}{text}\n" + (f"\n{own}" if own else "")
    return f"### {name}\n\n```text\n{signature(node, name)}\n```\n\n{text}\n"


def page() -> str:
    """The whole page."""
    own = "\n".join(filter(None, (entry(module, name) for name, module in onnxqat._PUBLIC.items())))
    others = {name: module for name, module in extend._PUBLIC.items() if name not in onnxqat._PUBLIC}
    bases = "\n".join(filter(None, (entry(module, name) for name, module in others.items())))
    return f"{INTRODUCTION}\n{own}{EXTENDING}\n{bases}"


def main() -> int:
    """Write or check the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare only")
    text = page()
    if parser.parse_args().check:
        return int(not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
