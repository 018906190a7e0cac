"""``onnxqat explain``."""

from __future__ import annotations

from pathlib import Path

import click

from onnxqat.cli import _options


@click.command
@click.argument("model", type=_options.PATH)
@click.option(
    "--backend", help="Say which rule of this target wants each pair: name of a backend table, or a YAML file."
)
@click.option("--node", metavar="NAME", help="Show only what is around the node or tensor of this name.")
@_options.html
@_options.as_json
def run(model: Path, backend: str | None, node: str | None, html: Path | None, as_json: bool) -> None:
    """Say where the pairs of a QDQ file are, what they are, which rule placed them, and why nodes are in float.

    MODEL is an ONNX file.

    Example: onnxqat explain model.qdq.onnx --backend onnxruntime-cpu --node conv1
    """
    from onnxqat.cli import _output
    from onnxqat.linting.explain import explain
    from onnxqat.report import build_explain

    report = build_explain.from_explain(explain(model, backend, node=node))
    _output.show(report, as_json=as_json, html_path=html)
