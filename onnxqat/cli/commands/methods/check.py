"""``onnxqat methods check``."""

from __future__ import annotations

import click

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
    _findings.show(found, {"method": found.name}, as_json=as_json)
