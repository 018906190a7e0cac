"""``onnxqat backends``: a group of commands, one file each; the file's name is the command's."""

from __future__ import annotations

import click

from onnxqat import discover


class Subcommands(click.Group):
    """The files of this folder as commands; only the one that is called is imported."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return discover.names(__name__)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        known = cmd_name in self.list_commands(ctx)
        command: click.Command | None = discover.load(__name__, cmd_name).run if known else None
        return command


@click.command(cls=Subcommands, invoke_without_command=True)
@click.pass_context
def run(ctx: click.Context) -> None:
    """List the backend tables, show one, check one of your own, or compare two.

    Without a command the tables are listed.

    Example: onnxqat backends show tensorrt
    """
    if ctx.invoked_subcommand is None:
        command = run.get_command(ctx, "list")
        assert command is not None
        ctx.invoke(command, as_json=False)
