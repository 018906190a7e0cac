"""``onnxqat recipes show``."""

from __future__ import annotations

import json

import click

from onnxqat import printing
from onnxqat.cli import _options


@click.command
@click.argument("name")
@_options.as_json
def run(name: str, as_json: bool) -> None:
    """Print a recipe as the YAML file that --config takes.

    Change it, and pass its path: onnxqat auto model.onnx --config mine.yaml.

    Example: onnxqat recipes show classification > mine.yaml
    """
    from onnxqat.recipes import library

    if as_json:
        printing.echo(json.dumps({**library.plain(library.read(name)), "name": name}))
        return
    printing.echo(library.file(name).read_text(encoding="utf-8").removesuffix("\n"))
