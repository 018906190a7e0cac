"""``onnxqat fold-batchnorm``."""

from __future__ import annotations

from pathlib import Path

import click

from onnxqat.cli import _options


@click.command
@click.argument("model", type=_options.PATH)
@click.option(
    "--backend",
    help="Backend table that says in which form biases are written: a name, or a YAML file [the one that the file names].",
)
@click.option(
    "--bias", type=click.Choice(["int32", "snapped", "float"]), help="Form to write biases in [the backend's]."
)
@click.option("-o", "--output", type=_options.OUTPUT, help="File to write [MODEL.folded.onnx].")
@_options.html
@_options.as_json
def run(
    model: Path, backend: str | None, bias: str | None, output: Path | None, html: Path | None, as_json: bool
) -> None:
    """Fold BatchNormalization that was kept for training into the quantized layers.

    MODEL is a QDQ ONNX file. Codes of weights and all pairs stay; handoff does this by itself.

    Example: onnxqat fold-batchnorm tuned.qdq.onnx -o folded.qdq.onnx
    """
    from onnxqat.cli import _output
    from onnxqat.deployment.fold_batchnorm import fold_batchnorm
    from onnxqat.report import build, following

    result = fold_batchnorm(model, backend=backend, bias=bias, output=output)  # type: ignore[arg-type]  # one of its names
    next_step = following.validate(model, str(result.model), original=str(model))
    _output.show(build.from_fold(result, following=next_step), as_json=as_json, html_path=html)
