"""``onnxqat stitch``."""

from __future__ import annotations

from pathlib import Path

import click

from onnxqat.cli import _options


@click.command
@click.argument("part", type=_options.PATH)
@click.argument("model", type=_options.PATH)
@click.option("-o", "--output", type=_options.OUTPUT, help="File to write [MODEL.stitched.onnx].")
@_options.html
@_options.as_json
def run(part: Path, model: Path, output: Path | None, html: Path | None, as_json: bool) -> None:
    """Put a part, quantized or tuned, back into the model that it was cut from.

    Example: onnxqat stitch network.qdq.onnx detector.onnx -o detector.qdq.onnx
    """
    from onnxqat.cli import _output
    from onnxqat.report import build_subgraphs
    from onnxqat.subgraphs.stitch import stitch

    written = stitch(part, model, output)
    _output.show(build_subgraphs.from_stitch(written, part=part, whole=model), as_json=as_json, html_path=html)
