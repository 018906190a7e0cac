"""``onnxqat export``."""

from __future__ import annotations

from pathlib import Path

import click

from onnxqat.cli import _options


@click.command
@click.argument("module")
@click.option(
    "--example-shape",
    multiple=True,
    metavar="SHAPE",
    help="Shape of an input, as 1,3,224,224 or NAME=1,128:int64; repeat it.",
)
@click.option("-o", "--output", type=_options.OUTPUT, help="File to write [NAME.onnx].")
@click.option("--exporter", help="Exporter of torch to use: dynamo or torchscript [the first that works].")
@click.option(
    "--batch-norm",
    type=click.Choice(["fold", "keep"]),
    default="fold",
    help="Fold BatchNormalization into the layer in front, or keep it.",
)
@click.option("--fixed-batch", is_flag=True, help="Keep the batch size of the example.")
@click.option(
    "--dynamic-axis",
    multiple=True,
    metavar="INPUT:AXIS=NAME",
    help="Axis of an input whose size is free too, as in image:2=height; repeat it.",
)
@click.option(
    "--input-name",
    multiple=True,
    metavar="NAME",
    help="Name to give the next input, in order; repeat it [the arguments of forward].",
)
@click.option(
    "--output-name", multiple=True, metavar="NAME", help="Name to give the next output, in order; repeat it [output]."
)
@click.option("--opset", type=_options.COUNT, default=18, help="Version of ONNX's operators (opset) to write.")
@_options.html
@_options.as_json
def run(
    module: str,
    example_shape: tuple[str, ...],
    output: Path | None,
    exporter: str | None,
    batch_norm: str,
    fixed_batch: bool,
    dynamic_axis: tuple[str, ...],
    input_name: tuple[str, ...],
    output_name: tuple[str, ...],
    opset: int,
    html: Path | None,
    as_json: bool,
) -> None:
    """Export a torch module as a float ONNX file, checked against the module.

    MODULE is package.module:function, which returns the module; the working folder is searched too.

    Example: onnxqat export torchvision.models:resnet18 --example-shape 1,3,224,224 -o resnet18.onnx
    """
    _options.need("torch", "export")
    from onnxqat.cli import _output
    from onnxqat.from_torch import export, named
    from onnxqat.graph import io
    from onnxqat.report import build_export

    found = export.run(
        named.module_of(module),
        named.examples(example_shape),
        exporter=exporter,
        batch_norm=batch_norm,
        dynamic_batch=not fixed_batch,
        dynamic_shapes=_axes(dynamic_axis),
        input_names=input_name or None,
        output_names=output_name or None,
        opset=opset,
    )
    written = io.save(found.model, output or Path(module.rpartition(":")[2].rpartition(".")[2] + ".onnx"))
    report = build_export.from_export(found, source=module, written=written)
    _output.show(report, as_json=as_json, html_path=html)


def _axes(texts: tuple[str, ...]) -> dict[str, dict[int, str]]:
    """``INPUT:AXIS=NAME`` as input, axis and name.

    Raises:
        UsageError: ``option-invalid``.
    """
    from onnxqat.errors import UsageError

    found: dict[str, dict[int, str]] = {}
    for text in texts:
        where, _, name = text.rpartition("=")
        title, _, axis = where.rpartition(":")
        if not title or not name or not axis.removeprefix("-").isdecimal():
            hint = "for example --dynamic-axis image:2=height"
            raise UsageError("option-invalid", f"--dynamic-axis {text!r} is not of the form INPUT:AXIS=NAME", hint=hint)
        found.setdefault(title, {})[int(axis)] = name
    return found
