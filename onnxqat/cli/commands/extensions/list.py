"""``onnxqat extensions list``."""

from __future__ import annotations

import importlib.util
import json

import click

from onnxqat import printing
from onnxqat.cli import _options


@click.command
@_options.as_json
def run(as_json: bool) -> None:
    """Print the names of the extensions of each kind, those of other packages last.

    Example: onnxqat extensions list
    """
    from onnxqat import kinds

    has_torch = importlib.util.find_spec("torch") is not None
    found = {kind: kinds.names(kind) for kind in kinds.KINDS if has_torch or not kinds.needs_torch(kind)}
    if as_json:
        printing.echo(json.dumps(found))
        return
    for kind, names in found.items():
        printing.echo(printing.printable(f"{kind:14} {', '.join(names)}"))
