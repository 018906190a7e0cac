"""``onnxqat recipes``: a group of commands, one file each; the file's name is the command's."""

from __future__ import annotations

import click

from onnxqat.cli import _options
from onnxqat.cli._folder import Folder, list_by_default


@click.command(cls=Folder, package=__name__, invoke_without_command=True)
@_options.as_json
@click.pass_context
def group(ctx: click.Context, as_json: bool) -> None:
    """List the recipes for tasks, show one, or run one.

    Without a command the recipes are listed.

    Example: onnxqat recipes run classification model.onnx --data images/
    """
    list_by_default(ctx, as_json=as_json)
