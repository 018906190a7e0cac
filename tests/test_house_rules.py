"""Rules of the house that a linter does not know."""

import ast
import re
from pathlib import Path

import pytest

from tests.source_tree import REPOSITORY, imported, nodes, package_files

RULES = {
    "an open end": re.compile(r"\b(TODO|FIXME|XXX|HACK)\b"),
    # Swallowed errors turn into wrong numbers.
    "a bare except": re.compile(r"^\s*except\s*:", re.MULTILINE),
}
TORCH_QUANTIZATION = ("torch.ao.quantization", "torch.quantization", "torchao")


@pytest.mark.parametrize("rule", RULES)
def test_source_has_none_of(rule: str) -> None:
    found = []
    for path in package_files():
        text = path.read_text(encoding="utf-8")
        lines = (text.count("\n", 0, match.start()) + 1 for match in RULES[rule].finditer(text))
        found += [f"{path.relative_to(REPOSITORY)}:{line}" for line in lines]
    assert found == []


def test_torch_does_not_quantize() -> None:
    """torch's own fake quantizers multiply by 1/scale and round scale and zero point in their own way: other codes."""
    found = []
    for path in package_files():
        for node in nodes(path):
            used = imported(node) + ([node.attr] if isinstance(node, ast.Attribute) else [])
            wrong = [n for n in used if n.startswith(TORCH_QUANTIZATION) or "fake_quantize_per_" in n]
            found += [f"{path.relative_to(REPOSITORY)}:{getattr(node, 'lineno', 0)} {name}" for name in wrong]
    assert found == []


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    """A clause ("What ...", "Whether ...") says neither what a function does nor what it gives."""
    clauses = {"What", "Whether", "Where", "How", "Of", "Who", "Which", "When", "So"}
    found = [
        f"{path.relative_to(REPOSITORY)}:{node.lineno}"
        for path in package_files()
        for node in nodes(path)  # those of constants stand below them
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        if (node.value.value or "-").split()[0].strip(",:") in clauses
    ]
    assert found == []


def test_no_models_lie_in_the_repository() -> None:
    """Some compilers dump models into the working folder; those that tests read are small and made by them."""
    assert sorted(path.name for path in REPOSITORY.glob("*.onnx")) == []


def test_first_commands_of_the_readme(repository: Path) -> None:
    commands = re.findall(r"^(make \w+)", (repository / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert commands[:2] == ["make demo", "make test"]
