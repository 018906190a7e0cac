"""``onnxqat backends list``."""

from __future__ import annotations

import json

import click

from onnxqat import printing
from onnxqat.cli import _options


@click.command
@_options.as_json
def run(as_json: bool) -> None:
    """List the backend tables, those of other packages too.

    Example: onnxqat backends list
    """
    from onnxqat.backends import plugins, schema, unsupported_targets

    tables = [(name, schema.load(name)) for name in [*schema.names(), *plugins.names()]]
    if as_json:
        printing.echo(json.dumps([schema.as_json(table) for _, table in tables], indent=2))
        return
    width = max(len(name) for name, _ in tables)
    printing.echo("\n".join(f"{name:<{width}}  {table.description}" for name, table in tables))
    for name, reason in unsupported_targets.REFUSED.items():
        printing.echo(f"{name} is refused: {reason}", err=True)
