"""``onnxqat passes check``."""

from __future__ import annotations

import json

import click

from onnxqat import printing
from onnxqat.cli import _findings, _options


@click.command
@click.argument("file")
@_options.as_json
def run(file: str, as_json: bool) -> None:
    """Try a pass: structure, numbers in onnxruntime, a second run, inside an If and inside a function.

    FILE is a Python file with a pass, or the name of a pass. Leaves with status 1 when a promise is broken.

    Example: onnxqat passes check my_pass.py
    """
    from onnxqat.pipeline import check

    found = check.check(file)
    if as_json:
        content = {"pass": found.name, "models": found.models, "changed": found.changed}
        printing.echo(json.dumps({**content, "findings": _findings.messages(found.findings)}))
    else:
        _findings.say(found.findings)
        printing.echo(f"{found.changed} of {found.models} models were changed")
    if not found.passed:
        raise click.exceptions.Exit(1)
