"""``onnxqat passes check``."""

from __future__ import annotations

import click

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
    content = {"pass": found.name, "models": found.models, "changed": found.changed}
    _findings.show(found, content, as_json=as_json)
