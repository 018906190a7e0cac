"""``onnxqat methods list``."""

from __future__ import annotations

import inspect
import json

import click

from onnxqat import printing
from onnxqat.cli import _options


@click.command
@_options.as_json
def run(as_json: bool) -> None:
    """Print the names that --method takes, with a line about each.

    Example: onnxqat methods list
    """
    _options.need("torch", "train")
    from onnxqat.training import methods

    found = {}
    for name in methods.names():
        module = inspect.getmodule(methods.method(name))
        text = (module.__doc__ or "") if module else ""
        found[name.replace("_", "-")] = text.partition("\n")[0].partition(": ")[2]
    if as_json:
        printing.echo(json.dumps(found))
        return
    for name, text in found.items():
        printing.echo(f"{name:14} {text}")
