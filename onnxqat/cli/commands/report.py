"""``onnxqat report``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from onnxqat.cli import _headings, _options
from onnxqat.errors import UsageError


def _schema(context: click.Context, _: click.Parameter, asked: bool) -> None:
    """Print the JSON schema, and leave."""
    if asked:
        from onnxqat import printing
        from onnxqat.report.model_report import schema

        printing.echo(schema.schema_text().removesuffix("\n"))
        context.exit(0)


@click.command(cls=_headings.Headed)
@click.argument("model", type=_options.PATH)
@_headings.under(
    "Models",
    click.option(
        "--float",
        "float_model",
        type=_options.PATH,
        help="Float ONNX file to compare with [the one that MODEL records].",
    ),
    click.option(
        "--before",
        type=_options.PATH,
        help="The QDQ file before training: its scales and histograms stand beside those of MODEL.",
    ),
    click.option(
        "--variant",
        "variants",
        metavar="NAME=FILE",
        multiple=True,
        help="Another model to compare in size, cost and noise; repeat it.",
    ),
)
@_headings.under(
    "Data",
    _options.samples(64),
    click.option(
        "--latency", is_flag=True, help="Measure the time of one batch of each model in onnxruntime, in one thread."
    ),
)
@_headings.under(
    "Results",
    click.option(
        "--with",
        "results",
        type=_options.PATH,
        multiple=True,
        help="JSON of profile, validate, handoff, auto or mixed-precision, log.jsonl of finetune, search.json of auto, matrix.json of handoff, or a folder that holds one of these, such as a bundle; repeat it.",
    ),
)
@_headings.under(
    "Output",
    click.option(
        "-o", "--output", type=_options.OUTPUT, default="report.html", help="Page to write, or JSON by its suffix."
    ),
    click.option(
        "--node-data", type=_options.FOLDER, help="Also write node data for Model Explorer to this folder, a file each."
    ),
    click.option(
        "--schema",
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=_schema,
        help="Print the JSON schema of the report, and leave.",
    ),
    _options.as_json,
)
def run(
    model: Path,
    float_model: Path | None,
    before: Path | None,
    variants: tuple[str, ...],
    samples: dict[str, Any],
    latency: bool,
    results: tuple[Path, ...],
    output: Path,
    node_data: Path | None,
    as_json: bool,
) -> None:
    """Write one interactive page about a QDQ file: graph, quantizers, costs, training, targets.

    MODEL is a QDQ ONNX file. The page is one file that fetches nothing.

    Example: onnxqat report tuned.qdq.onnx --data images/ --with profile.json -o report.html
    """
    from onnxqat.cli import _output
    from onnxqat.report import build_model_report
    from onnxqat.report.model_report.build import model_report

    with _options.progress("report", quiet=as_json) as progress:
        found = model_report(
            model,
            float_model=float_model,
            before=before,
            variants=_named(variants),
            results=results,
            **samples,
            latency=latency,
            progress=progress,
        )
    written = [str(found.save(output))]
    if node_data is not None:
        from onnxqat.report.model_report import model_explorer

        written += map(str, model_explorer.write(found.content, node_data))
    _output.show(build_model_report.from_model_report(found.content, files=written), as_json=as_json)


def _named(variants: tuple[str, ...]) -> dict[str, Path]:
    """Split ``NAME=FILE``.

    Raises:
        UsageError: ``option-invalid``.
    """
    found: dict[str, Path] = {}
    for given in variants:
        name, equals, file = given.partition("=")
        if not (name and equals and file) or name in found:
            text = f"--variant {given}: a name of its own and a file are needed"
            raise UsageError("option-invalid", text, hint="--variant w4a8=w4a8.qdq.onnx")
        found[name] = Path(file)
    return found
