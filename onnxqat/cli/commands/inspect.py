"""``onnxqat inspect``."""

from __future__ import annotations

from pathlib import Path

import click

from onnxqat.cli import _options


@click.command
@click.argument("model", type=_options.PATH)
@_options.html
@_options.as_json
def run(model: Path, html: Path | None, as_json: bool) -> None:
    """Describe any ONNX file: inputs and outputs, operators, constants, work, quantizers.

    Example: onnxqat inspect model.onnx
    """
    from onnxqat.cli import _output
    from onnxqat.linting.inspect import inspect
    from onnxqat.report.build_inspect import from_inspect

    _output.show(from_inspect(inspect(model)), as_json=as_json, html_path=html)
