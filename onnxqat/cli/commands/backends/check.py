"""``onnxqat backends check``."""

from __future__ import annotations

import json

import click

from onnxqat import printing
from onnxqat.cli import _options


@click.command
@click.argument("file")
@_options.as_json
def run(file: str, as_json: bool) -> None:
    """Check a table: refuse it with file and key where it is wrong, and say what is doubtful.

    FILE is a YAML file, or the name of a backend.

    Example: onnxqat backends check my_target.yaml
    """
    from onnxqat.backends import review, schema
    from onnxqat.insertion.prepare import needed_opset

    table = schema.load(file)
    opset = needed_opset(table)
    found = [
        *review.remarks(table),
        *(f"{key} has no source in facts" for key in review.unsourced(schema.stated(file))),
    ]
    if as_json:
        printing.echo(json.dumps({"backend": table.backend, "opset": opset, "remarks": found}))
        return
    operators = {key.partition("/")[0] for key in table.ops}  # a row may be for one mode
    printing.echo(f"{table.backend}: {len(operators)} operators, {len(table.types)} types, opset {opset} and later")
    for text in found:
        printing.echo(f"  {text}")
