"""recipes: every file is one that its command takes, and run is that command."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from onnxqat.cli import _config, main
from onnxqat.recipes import library
from tests.source_tree import REPOSITORY

Run = Callable[..., Any]


@pytest.mark.parametrize("name", library.names())
def test_a_recipe_names_options_of_its_command(name: str) -> None:
    recipe = library.read(name)
    command = main.command_line.get_command(click.Context(main.command_line), str(recipe.command))
    assert command is not None
    values = dict(_config._defaults(command, recipe.options, library.file(name)))
    assert values
    context = click.Context(command)
    for parameter in command.params:
        if parameter.name in values:  # each has a value that its option takes
            parameter.type_cast_value(context, values[parameter.name])
    assert recipe.description
    assert f"| `{name}` | `{recipe.command}` |" in (REPOSITORY / "docs" / "commands" / "recipes.md").read_text()


def test_figures_name_what_measures_them() -> None:
    assert [name for name, recipe in library.recipes().items() if not recipe.figures] == []
    figures = [figure for recipe in library.recipes().values() for figure in recipe.figures]
    for figure in figures:
        program = figure.command.split()
        assert program[0] in ("onnxqat", "python")
        if program[0] == "python":
            assert (REPOSITORY / program[1]).is_file()


def test_run_is_the_command_with_the_options_of_the_recipe(folder: Path, onnxqat: Run) -> None:
    done = onnxqat("recipes", "run", "keyword-spotting", "model.onnx", "-c", "data.npz", "-o", "spotted.onnx", "--json")
    assert done.status == 0, done.err
    assert done.json["figures"]["backend"] == "litert-int8"
    done = onnxqat(
        "recipes", "run", "keyword-spotting", "model.onnx", "-c", "data.npz", "-o", "other.onnx",
        "--backend", "openvino-cpu", "--json",
    )  # fmt: skip
    assert done.json["figures"]["backend"] == "openvino-cpu"
    assert onnxqat("recipes", "run", "keywords").status == 2


def test_a_recipe_is_for_its_command(folder: Path, onnxqat: Run) -> None:
    shutil.copy(library.file("low-bits"), "mine.yaml")
    done = onnxqat("insert-qdq", "model.onnx", "-c", "data.npz", "--config", "mine.yaml")
    assert done.status == 2
    assert "is for the command finetune" in done.err
    Path("mine.yaml").write_text("schema: 1\noptions: {epochs: 1}\nnodes: [{operator: Conv, float: true}]\n")
    done = onnxqat("finetune", "model.onnx", "--data", "data.npz", "--config", "mine.yaml")
    assert "takes no rules for single nodes" in done.err


def test_show_prints_a_file_for_config(onnxqat: Run) -> None:
    assert yaml.safe_load(onnxqat("recipes", "show", "classification").out)["command"] == "auto"
    assert [row["name"] for row in onnxqat("recipes", "list", "--json").json] == library.names()
