"""Headings above groups of options in the help of a command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

WITHOUT = "Options"
"""Heading of options that were given none."""
_WIDEST_NAMES = 30  # click's own limit: longer names of an option take a line of their own


def under(heading: str, *options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a decorator that adds options to a command, to be shown below a heading.

    Only a command of class :class:`Headed` shows headings. Options that already have one keep it.

    Args:
        heading: the heading; a second use of it in one command continues the same list.
        options: what ``click.option`` returned, or another decorator that adds options.
    """

    def add(command: Any) -> Any:
        before = len(_noted_parameters(command))
        for option in reversed(options):
            command = option(command)
        for parameter in _noted_parameters(command)[before:]:
            vars(parameter).setdefault("heading", heading)
        return command

    return add


def of(parameter: click.Parameter) -> str:
    """Return the heading that an option is shown below."""
    return str(vars(parameter).get("heading", WITHOUT))


class Headed(click.Command):
    """A command whose help lists options below their headings, in the order in which these first appear."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one section for each heading, all with their texts in one column."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):  # newer clicks have one of arguments too
                sections.setdefault(of(parameter), []).append(record)
        if WITHOUT in sections:  # the last one: --help, which every command has
            sections[WITHOUT] = sections.pop(WITHOUT)
        widths = {heading: _width(rows) for heading, rows in sections.items()}
        for heading, rows in sections.items():
            with formatter.section(heading):
                formatter.write_dl(rows, col_spacing=2 + max(widths.values()) - widths[heading])


def _noted_parameters(command: Any) -> list[click.Parameter]:
    """Return the parameters that click has noted at a function, the last of the command first."""
    return list(getattr(command, "__click_params__", []))


def _width(rows: list[tuple[str, str]]) -> int:
    """Return the width that click gives the first column of `rows`."""
    return min(_WIDEST_NAMES, max(len(names) for names, _ in rows))
