"""``onnxqat cut``."""

from __future__ import annotations

from pathlib import Path

import click

from onnxqat.cli import _options


@click.command
@click.argument("model", type=_options.PATH)
@click.option(
    "--inputs",
    multiple=True,
    metavar="TENSOR",
    help="Name of a tensor that the part starts with; repeat it [the model's inputs].",
)
@click.option(
    "--outputs",
    multiple=True,
    metavar="TENSOR",
    help="Name of a tensor that the part ends with; repeat it [the model's outputs].",
)
@click.option(
    "--auto", is_flag=True, help="Find the ends that are not given, so that pre- and post-processing are left out."
)
@click.option("-o", "--output", type=_options.OUTPUT, help="File to write [MODEL.part.onnx].")
@_options.html
@_options.as_json
def run(
    model: Path,
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
    auto: bool,
    output: Path | None,
    html: Path | None,
    as_json: bool,
) -> None:
    """Cut a part out of a model by tensor names, such as a detector without its post-processing.

    MODEL is an ONNX file.

    Example: onnxqat cut detector.onnx --auto -o network.onnx
    """
    from onnxqat.cli import _output
    from onnxqat.report import build_subgraphs
    from onnxqat.subgraphs.cut import cut

    written = cut(model, inputs or None, outputs or None, output, auto=auto)
    _output.show(build_subgraphs.from_cut(written, whole=model), as_json=as_json, html_path=html)
