"""``onnxqat passes list``."""

from __future__ import annotations

import json

import click

from onnxqat import printing
from onnxqat.cli import _options


@click.command
@_options.as_json
def run(as_json: bool) -> None:
    """Print every pass with a line about it and the recipes that run it.

    Example: onnxqat passes list
    """
    from onnxqat.pipeline import describe

    found = describe.passes()
    if as_json:
        printing.echo(json.dumps([{"name": p.name, "summary": p.summary, "recipes": p.recipes} for p in found]))
        return
    for one in found:
        where = f" [{', '.join(one.recipes)}]" if one.recipes else ""
        printing.echo(printing.printable(f"{one.name:26} {one.summary}{where}"))
