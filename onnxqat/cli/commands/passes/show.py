"""``onnxqat passes show``."""

from __future__ import annotations

import json

import click

from onnxqat import printing
from onnxqat.cli import _options


@click.command
@click.argument("name")
@_options.as_json
def run(name: str, as_json: bool) -> None:
    """Print what a pass changes, case by case, and what it leaves alone.

    NAME is the name of a pass, or a Python file.

    Example: onnxqat passes show fold-batchnorm
    """
    from onnxqat.pipeline import describe

    one = describe.of(name)
    if as_json:
        content = {"name": one.name, "summary": one.summary, "recipes": one.recipes, "text": one.text}
        printing.echo(json.dumps(content))
        return
    printing.echo(printing.printable(f"{one.name}: {', '.join(one.recipes) or 'in no recipe'}"))
    printing.echo()
    for line in one.text.splitlines():
        printing.echo(printing.printable(line))
