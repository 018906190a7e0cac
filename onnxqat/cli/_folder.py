"""A folder whose files are commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from onnxqat import discover
from onnxqat.cli import _completion, _verbose


class Folder(click.Group):
    """The files of `package` as commands of their name, with ``-`` for ``_``; only the one that is called is imported.

    A subfolder is a command too, and may be such a folder again.

    Args:
        package: with the files.
        groups: commands under the headings that the help lists them below; "Commands" is that of all others.
        elsewhere: names that other tools have for the commands, see :func:`onnxqat.discover.unknown`.
    """

    def __init__(
        self,
        *arguments: Any,
        package: str,
        groups: Mapping[str, Sequence[str]] | None = None,
        elsewhere: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self.package = package
        self.groups = groups or {}
        self.elsewhere = elsewhere or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of the files."""
        return [name.replace("_", "-") for name in discover.names(self.package)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of the file `cmd_name`, which is imported; None where there is no such file."""
        if cmd_name not in self.list_commands(ctx):
            return None
        module = discover.load(self.package, cmd_name)
        # A subfolder with a command `run` has that module under this name: its own command is called `group`.
        return _verbose.attach(_completion.attach(module.group if hasattr(module, "group") else module.run))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that `args` begin with.

        Raises:
            QatError: ``name-unknown``: there is none; names the closest.
            click.UsageError: they begin with an option that the folder does not have.
        """
        if args[0].startswith("-") or args[0] in self.list_commands(ctx):
            return super().resolve_command(ctx, args)
        raise discover.unknown("command", args[0], self.list_commands(ctx), self.elsewhere)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The first sentence about each command; click's own list cuts it to a line."""
        found = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        rows = {name: command.get_short_help_str(limit=1000) for name, command in found.items() if command is not None}
        grouped = {name for names in self.groups.values() for name in names}
        sections = {**self.groups, "Commands": [name for name in rows if name not in grouped]}
        widest = max(map(len, rows))
        for heading, names in sections.items():
            lines = [(name.ljust(widest), rows[name]) for name in names if name in rows]
            if lines:
                with formatter.section(heading):
                    formatter.write_dl(lines)


def list_by_default(ctx: click.Context, *, as_json: bool) -> None:
    """Invoke ``list`` where a folder is called without a command.

    Args:
        ctx: of the folder.
        as_json: an option of that call; in front of another command it means nothing.

    Raises:
        click.UsageError: it stands in front of one.
    """
    if ctx.invoked_subcommand is None:
        assert isinstance(ctx.command, Folder)
        command = ctx.command.get_command(ctx, "list")
        assert command is not None
        ctx.invoke(command, as_json=as_json)
    elif as_json:
        raise click.UsageError("--json goes behind the name of the command", ctx)
