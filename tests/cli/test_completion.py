"""Completion in shells: names of lists, files where no name fits, and commands."""

import subprocess
import sys

import click
import pytest

from onnxqat.backends import table_files
from onnxqat.cli import _completion, main
from tests.cli.test_commands import COMMANDS


def completions(command: str, option: str, start: str) -> list[tuple[str, str]]:
    context = click.Context(main.command_line)
    found = main.command_line.get_command(context, command)
    assert found is not None
    parameter = next(each for each in found.params if option in each.opts)
    return [(item.value, item.type) for item in parameter.shell_complete(click.Context(found), start)]


@pytest.mark.parametrize("command", ["insert-qdq", "lint", "explain", "auto", "mixed-precision"])
def test_backends(command: str) -> None:
    assert {value for value, _ in completions(command, "--backend", "")} >= set(table_files.names())
    assert completions(command, "--backend", "tidl-") == [("tidl-mmav2", "plain")]
    assert completions(command, "--backend", "./mine") == [("./mine", "file")]


def test_other_names() -> None:
    assert ("percentile", "plain") in completions("insert-qdq", "--observer", "per")
    assert ("lsq", "plain") in completions("finetune", "--method", "l")
    assert ("coco-map", "plain") in completions("finetune", "--score", "coco")
    assert completions("insert-qdq", "--equalize", "cross") == [("cross-layer-equalization", "plain")]
    assert completions("insert-qdq", "--equalize", "awq,smooth") == [("awq,smoothquant", "plain")]
    assert ("cosine", "plain") in completions("finetune", "--schedule", "c")
    assert completions("insert-qdq", "--integer", "gelu,softm") == [("gelu,softmax", "plain")]


def test_a_shell_asks() -> None:
    code = "from onnxqat.cli.main import main; main()"
    asked = {"COMP_WORDS": "onnxqat insert", "COMP_CWORD": "1", _completion.VARIABLE: "bash_complete"}
    done = subprocess.run([sys.executable, "-c", code], env=asked, capture_output=True, text=True, check=True)
    assert done.stdout == "plain,insert-qdq\n"


def test_every_command_has_a_group() -> None:
    grouped = [name for names in main.GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(COMMANDS)
