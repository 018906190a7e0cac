"""``onnxqat passes check``."""

from __future__ import annotations

import json

import click

from onnxqat import printing
from onnxqat.cli import _options


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
        findings = {f.name: f.message or None for f in found.findings}
        content = {"pass": found.name, "models": found.models, "changed": found.changed, "findings": findings}
        printing.echo(json.dumps(content))
    else:
        for finding in found.findings:
            told = "kept" if finding.passed else f"broken: {finding.message}"
            printing.echo(printing.printable(f"{finding.name:14} {told}"))
        printing.echo(f"{found.changed} of {found.models} models were changed")
    if not found.passed:
        raise click.exceptions.Exit(1)
