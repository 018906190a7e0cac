"""``onnxqat backends``."""

from __future__ import annotations

import json

import click

from onnxqat.cli import _options


@click.command
@click.argument("name", required=False)
@_options.as_json
def run(name: str | None, as_json: bool) -> None:
    """List the backend tables, or show one.

    NAME is a backend or a YAML file of one; all are listed when it is omitted.

    Example: onnxqat backends tensorrt
    """
    from onnxqat.backends import schema

    tables = [schema.load(n) for n in ([name] if name else schema.names())]
    if as_json:
        click.echo(json.dumps([schema.as_json(t) for t in tables], indent=2))
    elif name is None:
        width = max(len(t.backend) for t in tables)
        click.echo("\n".join(f"{t.backend:<{width}}  {t.description}" for t in tables))
    else:
        click.echo(schema.describe(tables[0]))
