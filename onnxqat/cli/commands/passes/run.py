"""``onnxqat passes run``."""

from __future__ import annotations

import json
from pathlib import Path

import click

from onnxqat import printing
from onnxqat.cli import _options


@click.command
@click.argument("name")
@click.argument("model", type=_options.PATH)
@click.option("-o", "--output", type=_options.OUTPUT, required=True, help="File to write.")
@_options.as_json
def run(name: str, model: Path, output: Path, as_json: bool) -> None:
    """Run one pass on a model.

    NAME is the name of a pass, or a Python file with a pass. The file is written where nothing changed, too.

    Example: onnxqat passes run my_pass.py model.onnx -o rewritten.onnx
    """
    from onnxqat.pipeline import alone

    result = alone.run_pass(name, model, output)
    if as_json:
        remarks = [{"message": r.message, "nodes": list(r.nodes)} for r in result.remarks]
        printing.echo(json.dumps({"output": str(result.model), "changed": result.changed, "remarks": remarks}))
        return
    for remark in result.remarks:
        nodes = f" ({', '.join(remark.nodes)})" if remark.nodes else ""
        printing.echo(printing.printable(f"{remark.message}{nodes}"))
    printing.echo(printing.printable(f"{'changed' if result.changed else 'nothing to change'}: {result.model}"))
