"""``onnxqat backends``: a group of commands, one file each; the file's name is the command's."""

from __future__ import annotations

import click

from onnxqat.cli import _options
from onnxqat.cli._folder import Folder, list_by_default


@click.command(cls=Folder, package=__name__, invoke_without_command=True)
@_options.as_json
@click.pass_context
def run(ctx: click.Context, as_json: bool) -> None:
    """List the backend tables, show one, check one of your own, or compare two.

    Without a command the tables are listed.

    Example: onnxqat backends show tensorrt
    """
    list_by_default(ctx, as_json=as_json)
