"""``-v`` of every command that ends in a report: details are shown too."""

from __future__ import annotations

import click

_KEY = "onnxqat.verbose"


def _note(ctx: click.Context, _: click.Parameter, given: bool) -> None:
    ctx.meta[_KEY] = given


def attach(command: click.Command) -> click.Command:
    """Give `command` the option, where it ends in a report; returns the command."""
    names = {parameter.name for parameter in command.params}
    if (
        "as_json" in names
        and names & {"html", "page"}
        and "verbose" not in names
        and not isinstance(command, click.Group)
    ):
        text = "List details too: what passes rewrote."
        option = click.Option(["-v", "--verbose"], is_flag=True, expose_value=False, callback=_note, help=text)
        if any("heading" in vars(parameter) for parameter in command.params):
            vars(option)["heading"] = "Output"
        command.params.append(option)
    return command


def asked() -> bool:
    """Return what the running command was given."""
    return bool(click.get_current_context().meta.get(_KEY))
