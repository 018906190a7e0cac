"""``onnxqat recipes run``."""

from __future__ import annotations

from typing import cast

import click

from onnxqat.cli import _options


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("name")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@_options.as_json
@click.pass_context
def run(ctx: click.Context, name: str, arguments: tuple[str, ...], as_json: bool) -> None:
    """Run the command of a recipe with its options.

    ARGUMENTS are those of the command, a model first; its options win over those of the recipe.

    Example: onnxqat recipes run classification model.onnx --data images/ --backend openvino-cpu
    """
    from onnxqat.recipes import library

    recipe = library.read(name)
    root = ctx.find_root()
    command = cast(click.Group, root.command).get_command(root, str(recipe.command))
    assert command is not None
    given = [*arguments, *["--json"] * as_json, "--config", str(library.file(name))]
    with command.make_context(str(recipe.command), given, parent=root) as inner:
        command.invoke(inner)
