"""``onnxqat recipes show``."""

from __future__ import annotations

import click

from onnxqat import printing


@click.command
@click.argument("name")
def run(name: str) -> None:
    """Print a recipe as the YAML file that --config takes.

    Change it, and pass its path: onnxqat auto model.onnx --config mine.yaml.

    Example: onnxqat recipes show classification > mine.yaml
    """
    from onnxqat.recipes import library

    printing.echo(library.file(name).read_text(encoding="utf-8").removesuffix("\n"))
