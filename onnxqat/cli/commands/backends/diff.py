"""``onnxqat backends diff``."""

from __future__ import annotations

import json

import click

from onnxqat import printing
from onnxqat.cli import _options


@click.command
@click.argument("first")
@click.argument("second")
@_options.as_json
def run(first: str, second: str, as_json: bool) -> None:
    """Compare two tables, key by key, with all that they inherit.

    FIRST and SECOND are backends or YAML files of one.

    Example: onnxqat backends diff qnn-htp rknn
    """
    from onnxqat.backends import comparison, schema

    found = comparison.differences(schema.load(first), schema.load(second))
    if as_json:
        printing.echo(json.dumps({key: {"first": a, "second": b} for key, (a, b) in found.items()}, indent=2))
        return
    for key, (a, b) in found.items():
        printing.echo(f"{key}: {comparison.text(a)} -> {comparison.text(b)}")
