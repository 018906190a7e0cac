"""The migration pages account for every row of the requirements, and name only commands and options that exist."""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from onnxqat import discover
from onnxqat.calibration import observers
from onnxqat.cli.main import command_line
from onnxqat.compat import mqbench_names
from onnxqat.compat.backend_type import TABLES
from onnxqat.compat.custom_config import KEYS, QCONFIG, QUANTIZER, SCHEMES
from tests.source_tree import REPOSITORY

PAGES = sorted((REPOSITORY / "docs" / "migrate").glob("*.md"))
CODE = re.compile(r"`([^`\n]+)`|^\$ (.+)$", re.M)
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


def text(name: str) -> str:
    return (REPOSITORY / "docs" / "migrate" / name).read_text(encoding="utf-8")


def commands(group: click.Command = command_line, prefix: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command with its full name."""
    if isinstance(group, click.Group):
        context = click.Context(group)
        for name in group.list_commands(context):
            found = group.get_command(context, name)
            assert found is not None
            yield f"{prefix}{name}", found
            yield from commands(found, f"{prefix}{name} ")


COMMANDS = dict(commands())
OPTIONS = {
    name: {o for p in c.params for o in (*p.opts, *p.secondary_opts)} | {"--help"} for name, c in COMMANDS.items()
}


def rows(page: str, letter: str) -> list[str]:
    return re.findall(rf"^\| ({letter}\d+) \|", text(page), re.M)


def test_every_row_has_an_answer() -> None:
    assert rows("knight.md", "A") == [f"A{i}" for i in range(1, 30)]
    assert rows("knight.md", "B") == [f"B{i}" for i in range(1, 40)]
    assert rows("knight.md", "C") == [f"C{i}" for i in range(1, 6)]


def test_every_argument_of_train_is_on_the_page() -> None:
    own = {
        "--output",
        "-o",
        "--preprocess",
        "--image-size",
        "--calibration-batches",
        "--distill-tensors",
        "--json",
        "--batch-norm",
    }
    page = text("knight.md")
    table = page[page.index("| B1 |") : page.index("| B38 |")]
    named = set(re.findall(r"`(--?[\w-]+)`", table)) | {"--sched"}
    assert OPTIONS["train"] - own - named == set()
    assert "`--sched plateau`" in page


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_commands_and_options_exist(page: Path) -> None:
    found = [a or b for a, b in CODE.findall(page.read_text(encoding="utf-8"))]
    assert any(code.startswith("onnxqat ") for code in found)
    everywhere = set().union(*OPTIONS.values())
    for code in found:
        words = code.split()
        asked = set(OPTION.findall(code))
        if words[0] == "onnxqat" and len(words) > 1:
            name = " ".join(words[1:3]) if " ".join(words[1:3]) in OPTIONS else words[1]
            assert name in OPTIONS, code
            assert asked <= OPTIONS[name], code
        elif words[0] in OPTIONS:  # `insert-qdq --exclude NAME`
            assert asked <= OPTIONS[words[0]], code
        else:
            assert asked <= everywhere, code


def test_names_of_mqbench_are_on_the_page() -> None:
    page = text("mqbench.md")
    for name in (*TABLES, *KEYS, *QCONFIG, *SCHEMES, *QUANTIZER, *mqbench_names.OBSERVERS, *mqbench_names.METHODS):
        name = getattr(name, "name", name)
        if name not in (
            "extra_qconfig_dict",
            "EMAMinMaxFloorObserver",
            "ModeMinMaxFloorObserver",
            "LSQPlusFakeQuantize",
        ):
            assert f"`{name}`" in page, name
    known = discover.names(observers.__name__)
    assert all(mqbench_names.observer(name, known)[1] for name in mqbench_names.OBSERVERS)
    assert set(mqbench_names.METHODS.values()) <= set(discover.names("onnxqat.training.methods"))
