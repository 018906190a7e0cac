"""Options of a command from a configuration file, and the file that holds those of a run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onnxqat import discover
from onnxqat.cli import _options
from onnxqat.errors import UsageError

if TYPE_CHECKING:
    from onnxqat.placement.node_rules import NodeRule
    from onnxqat.types import QuantPlan

_NOT_OF_FILES = {"rules", "save_config", "output", "html", "as_json", "explain", "help"}
"""Arguments that say where results go, or what is read: these belong to one run."""


def _read(ctx: click.Context, param: click.Parameter, value: Path | None) -> tuple[NodeRule, ...]:
    """Make the file's options the defaults of the command, and return its rules.

    Raises:
        UsageError: ``option-invalid``: an option that the command has not.
    """
    if value is None:
        return ()
    from onnxqat.placement import config_file

    found = config_file.read(value)
    name = str(ctx.info_name)
    if found.command not in (None, name):
        hint = f"onnxqat {found.command} MODEL --config {value}"
        raise UsageError("option-invalid", f"{value} is for the command {found.command}, not for {name}", hint=hint)
    if found.nodes and not any(each.name == "save_config" for each in ctx.command.params):
        raise UsageError("option-invalid", f"{value}: nodes: {name} takes no rules for single nodes")
    ctx.default_map = dict(_defaults(ctx.command, found.options, value))
    return found.nodes


def _defaults(command: click.Command, options: Mapping[str, Any], file: Path) -> Iterator[tuple[str, Any]]:
    """Return names of the command's arguments with the values that the file gives them."""
    known = {name: (parameter, negative) for parameter, names in _named(command) for name, negative in names}
    for key, value in options.items():
        name = key.replace("_", "-")
        if name not in known:
            hint = discover.suggestion(name, sorted(known))
            raise UsageError("option-invalid", f"{file}: options.{key}: there is no such option", hint=hint)
        parameter, negative = known[name]
        if negative and not isinstance(value, bool):
            raise UsageError("option-invalid", f"{file}: options.{key} is true or false, not {value!r}")
        if parameter.multiple and not isinstance(value, tuple):
            value = (value,)
        elif negative:
            value = not value
        yield str(parameter.name), value


def _named(command: click.Command) -> Iterator[tuple[click.Option, list[tuple[str, bool]]]]:
    """Return each option that files may hold, with its long names, and whether they stand for False."""
    for parameter in command.params:
        if isinstance(parameter, click.Option) and parameter.name not in _NOT_OF_FILES:
            every = ((parameter.opts, False), (parameter.secondary_opts, True))
            yield parameter, [(n[2:], negative) for names, negative in every for n in names if n.startswith("--")]


plain = click.option(
    "--config",
    "rules",
    type=_options.PATH,
    is_eager=True,  # the defaults of the others
    expose_value=False,
    callback=_read,
    help="YAML file of options, which those of the command line win over, such as a recipe.",
)
options = (
    click.option(
        "--config",
        "rules",
        type=_options.PATH,
        is_eager=True,
        callback=_read,
        help="YAML file of options, which those of the command line win over, and of rules for single nodes.",
    ),
    click.option(
        "--save-config",
        type=_options.OUTPUT,
        metavar="FILE",
        help="Also write the options of this run, and the nodes as they were quantized, to a file for --config.",
    ),
)


def save(path: Path | None, rules: Iterable[NodeRule], plan: QuantPlan) -> None:
    """Write the options of the running command, `rules`, and as comments the nodes of `plan`; nothing without `path`."""
    if path is None:
        return
    from onnxqat.graph import atomic
    from onnxqat.placement import config_file, node_rules

    ctx = click.get_current_context()
    given: dict[str, Any] = {}
    for parameter, names in _named(ctx.command):
        name = str(parameter.name)
        if ctx.get_parameter_source(name) in (None, click.core.ParameterSource.DEFAULT):
            continue
        value = ctx.params[name]
        negative = next((n for n, stands_for_false in names if stands_for_false), None)
        if value is False and negative is not None:
            given[negative] = True
        else:
            given[names[0][0]] = _plain(value)
    text = config_file.text(given, rules, node_rules.of_plan(plan))
    atomic.write_atomic(path, text.encode())


def _plain(value: Any) -> Any:
    """Return a value of an option as YAML holds it."""
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value
