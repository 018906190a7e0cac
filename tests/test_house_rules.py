"""Rules of the house that a linter does not know."""

import re
from pathlib import Path

import pytest

from tests.source_tree import REPOSITORY, package_files

RULES = {
    # torch's own fake quantizers multiply by 1/scale and round scale and zero point in their own way: other codes.
    "torch's fake quantization": re.compile(
        r"fake_quantize_per_(tensor|channel)_affine|torch\.fake_quantize|torch\.(ao\.)?quantization|_fake_quantize_learnable"
    ),
    "an open end": re.compile(r"\b(TODO|FIXME|XXX|HACK)\b"),
    # Swallowed errors turn into wrong numbers.
    "a bare except": re.compile(r"^\s*except\s*:", re.MULTILINE),
}


@pytest.mark.parametrize("rule", RULES)
def test_source_has_none_of(rule: str) -> None:
    found = []
    for path in package_files():
        text = path.read_text(encoding="utf-8")
        lines = (text.count("\n", 0, match.start()) + 1 for match in RULES[rule].finditer(text))
        found += [f"{path.relative_to(REPOSITORY)}:{line}" for line in lines]
    assert found == []


def test_first_commands_of_the_readme(repository: Path) -> None:
    commands = re.findall(r"^(make \w+)", (repository / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert commands[:2] == ["make demo", "make test"]
