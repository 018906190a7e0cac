"""``onnxqat recipes list``."""

from __future__ import annotations

import json

import click

from onnxqat import printing
from onnxqat.cli import _options


@click.command
@_options.as_json
def run(as_json: bool) -> None:
    """Print every recipe with its command, a line about it and what was reached with it.

    Example: onnxqat recipes list
    """
    from onnxqat.recipes import library

    found = library.recipes()
    if as_json:
        printing.echo(json.dumps([{**library.plain(recipe), "name": name} for name, recipe in found.items()]))
        return
    for name, recipe in found.items():
        printing.echo(printing.printable(f"{name:20} {recipe.command}: {recipe.description}"))
        for figure in recipe.figures:
            printing.echo(printing.printable(f"{'':20} {figure.result}"))
