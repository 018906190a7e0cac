"""Help of the commands: each option says what its value is, and long lists have headings."""

import re
from collections.abc import Callable
from typing import Any

import click
import pytest

from onnxqat.cli import _headings, main
from tests.cli.test_commands import leaves

Run = Callable[..., Any]
LONGEST_FLAT = 12  # options that a reader still finds in a list without headings


def command_of(words: tuple[str, ...]) -> click.Command:
    command: click.Command | None = main.command_line
    for word in words:
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), word)
    assert command is not None
    return command


def options(command: click.Command) -> list[click.Option]:
    return [parameter for parameter in command.params if isinstance(parameter, click.Option)]


COMMANDS = leaves(main.command_line)
HEADED = [words for words in COMMANDS if isinstance(command_of(words), _headings.Headed)]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_options_say_what_their_value_is(words: tuple[str, ...]) -> None:
    texts = {option.opts[-1]: option.help or "" for option in options(command_of(words))}
    bad = re.compile(r"(?![A-Z])|(Of|For|What|Where|How|The same|Against)\b|.*[^.]$", re.DOTALL)
    assert {name: text for name, text in texts.items() if bad.match(text)} == {}


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_long_lists_have_headings(words: tuple[str, ...]) -> None:
    command = command_of(words)
    assert isinstance(command, _headings.Headed) == (len(options(command)) > LONGEST_FLAT)
    if isinstance(command, _headings.Headed):
        assert [o.opts[-1] for o in options(command) if _headings.of(o) == _headings.WITHOUT] == []


@pytest.mark.parametrize("words", HEADED, ids=" ".join)
def test_each_option_stands_below_its_heading(words: tuple[str, ...], onnxqat: Run) -> None:
    out = onnxqat(*words, "--help").out
    assert max(map(len, out.splitlines())) <= 80
    sections = dict(re.findall(r"^(\S.*):\n((?:  .*\n)+)", out, re.M))
    found = {name: heading for heading, text in sections.items() for name in re.findall(r"^  (-\S+?),? ", text, re.M)}
    expected = {option.opts[0]: _headings.of(option) for option in options(command_of(words))}
    assert {name: found.get(name) for name in expected} == expected
    assert list(sections)[-1] == _headings.WITHOUT
    assert found["-h"] == _headings.WITHOUT
    columns = {len(indent) for indent in re.findall(r"^( {10,})\S", out, re.M)}
    assert len(columns) == 1, "the texts of options do not stand in one column"
    assert "None]" not in out, "a number without limits is shown with one"


def test_an_inner_heading_stays() -> None:
    inner = _headings.under("Inner", click.option("--first", help="First."))

    @click.command(cls=_headings.Headed)
    @_headings.under("Outer", inner, click.option("--second", help="Second."))
    @click.option("--third", help="Third.")
    def run(**_: Any) -> None:
        """Do nothing."""

    assert [(o.opts[0], _headings.of(o)) for o in options(run)] == [
        ("--first", "Inner"),
        ("--second", "Outer"),
        ("--third", "Options"),
    ]
