"""``onnxqat extensions``: a group of commands, one file each; the file's name is the command's."""

from __future__ import annotations

import click

from onnxqat.cli import _options
from onnxqat.cli._folder import Folder, list_by_default


@click.command(cls=Folder, package=__name__, invoke_without_command=True)
@_options.as_json
@click.pass_context
def run(ctx: click.Context, as_json: bool) -> None:
    """List the extensions of each kind, or try one of your own.

    Without a command they are listed.

    Example: onnxqat extensions check my_observer.py
    """
    list_by_default(ctx, as_json=as_json)
