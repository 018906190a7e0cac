"""``onnxqat backends show``."""

from __future__ import annotations

import json

import click

from onnxqat import printing
from onnxqat.cli import _options


@click.command
@click.argument("name")
@_options.as_json
def run(name: str, as_json: bool) -> None:
    """Show a table with all that it inherits, and first what in it is unverified.

    NAME is a backend or a YAML file of one. The output is a table itself.

    Example: onnxqat backends show tsqat
    """
    from onnxqat.backends import schema

    table = schema.load(name)
    if as_json:
        printing.echo(json.dumps({**schema.as_json(table), "unverified": sorted(schema.unverified(table))}, indent=2))
    else:
        printing.echo(schema.describe(table))
