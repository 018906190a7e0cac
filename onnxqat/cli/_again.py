"""The command that is being run, written once more with some of its options changed."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import click
from click.core import ParameterSource


def again(**changed: Any) -> str:
    """The command line of the command that is being run.

    Args:
        changed: values of options by the names of their parameters; the others are those that were given.
    """
    context = click.get_current_context()
    words = ["onnxqat", str(context.info_name)]
    for parameter in context.command.params:
        name = str(parameter.name)
        value = changed.get(name, context.params.get(name))
        given = context.get_parameter_source(name) in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)
        if name in changed or given:
            words += _words_of(parameter, value)
    return shlex.join(words)


def _words_of(parameter: click.Parameter, value: Any) -> Iterator[str]:
    """The words that give `parameter` this value."""
    values = value if isinstance(value, tuple) else (value,)
    if isinstance(parameter, click.Option) and parameter.is_flag:
        names = parameter.opts if value else parameter.secondary_opts
        yield from names[-1:]
        return
    for each in values:
        if isinstance(parameter, click.Option):
            yield parameter.opts[0] if parameter.opts[0].startswith("-o") else parameter.opts[-1]
        yield f"{each:g}" if isinstance(each, float) else str(each)
