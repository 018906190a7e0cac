"""``onnxqat backends``."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from onnxqat.cli import _options


def run(
    name: Annotated[str | None, typer.Argument(help="Backend, or YAML file of one; all when omitted.")] = None,
    as_json: _options.Json = False,
) -> None:
    """List the backend tables, or show one.

    Example: onnxqat backends tensorrt
    """
    from onnxqat.backends import schema

    tables = [schema.load(n) for n in ([name] if name else schema.names())]
    if as_json:
        typer.echo(json.dumps([schema.as_json(t) for t in tables], indent=2))
    elif name is None:
        width = max(len(t.backend) for t in tables)
        typer.echo("\n".join(f"{t.backend:<{width}}  {t.description}" for t in tables))
    else:
        typer.echo(schema.describe(tables[0]))
