"""``onnxqat methods check``."""

from __future__ import annotations

import json

import click

from onnxqat import printing
from onnxqat.cli import _findings, _options


@click.command
@click.argument("file")
@_options.as_json
def run(file: str, as_json: bool) -> None:
    """Try a method: parity with numpy and with onnxruntime after export, gradients, float state, copies, compilation.

    FILE is a Python file with a class Method and a function reference, or the name of a method.

    Example: onnxqat methods check my_method.py
    """
    _options.need("torch", "train")
    from onnxqat.training.methods import _check

    found = _check.check(file)
    if as_json:
        printing.echo(json.dumps({"method": found.method, "findings": _findings.messages(found.findings)}))
    else:
        _findings.say(found.findings)
    if not found.passed:
        raise click.exceptions.Exit(1)
