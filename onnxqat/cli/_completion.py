"""Completion of commands, options and names in a shell: ``onnxqat insert-qdq --backend <TAB>``.

https://click.palletsprojects.com/en/stable/shell-completion/ has the protocol; docs/index.md how it is switched on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem, shell_complete

from onnxqat import discover

VARIABLE = "_ONNXQAT_COMPLETE"


class Named(click.types.StringParamType):
    """Text that is a name of a list, or the path of a file.

    Args:
        names: gives the list; called when a shell asks.
    """

    def __init__(self, names: Callable[[], Iterable[str]]) -> None:
        self._names = names

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Names that begin with `incomplete`, or with what is behind its last comma; files where none does."""
        before, comma, start = incomplete.rpartition(",")
        found = [CompletionItem(before + comma + name) for name in self._names() if name.startswith(start)]
        return found or [CompletionItem(incomplete, type="file")]


def _files(package: str) -> Callable[[], list[str]]:
    return lambda: [name.replace("_", "-") for name in discover.names(package)]


def _backends() -> list[str]:
    from onnxqat.backends import plugins, table_files

    return [*table_files.names(), *plugins.names()]


def _equalizations() -> list[str]:
    return ["auto", "none", *_files("onnxqat.equalization.methods")()]


def _integer_functions() -> list[str]:
    from onnxqat.integer_functions import library

    return ["all", *map(str.lower, library.kinds())]


_LISTS: dict[str, Callable[[], Iterable[str]]] = {
    "backend": _backends,
    "backends": _backends,
    "compiler": _files("onnxqat.deployment.compilers"),
    "equalize": _equalizations,
    "integer": _integer_functions,
    "install": _files("onnxqat.deployment.compilers"),
    "method": _files("onnxqat.training.methods"),
    "observer": _files("onnxqat.calibration.observers"),
    "activation_observer": _files("onnxqat.calibration.observers"),
    "weight_observer": _files("onnxqat.calibration.observers"),
    "score": _files("onnxqat.metrics"),
    "scores": _files("onnxqat.metrics"),
    "schedule": _files("onnxqat.training.schedules"),
    "distributed": _files("onnxqat.training.distributed.strategies"),
}
"""Lists by the name of the option's argument, the same in all commands."""


def attach(command: click.Command) -> click.Command:
    """Let the options of `command` that take a name of a list complete it; returns the command."""
    for option in command.params:
        if option.name in _LISTS and isinstance(option, click.Option) and option.type is click.STRING:
            option.type = Named(_LISTS[option.name])
    return command


def answer(command: click.Command) -> int | None:
    """Print what a shell asks for, and return the exit status; None where no shell asks."""
    instruction = os.environ.get(VARIABLE)
    return shell_complete(command, {}, "onnxqat", VARIABLE, instruction) if instruction else None
