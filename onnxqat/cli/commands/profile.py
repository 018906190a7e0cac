"""``onnxqat profile``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import click

from onnxqat.cli import _headings, _options


@click.command(cls=_headings.Headed)
@click.argument("float_model", type=_options.PATH)
@click.argument("qdq_model", type=_options.PATH)
@_headings.under("Data", _options.samples(64))
@_headings.under(
    "Measures",
    click.option(
        "--by",
        type=click.Choice(["tensor", "layer"]),
        default="tensor",
        help="Switch single tensors, or all that a node reads.",
    ),
    click.option(
        "--ways",
        metavar="WAY,...",
        help="Ways to measure: alone, off (all others on), cumulative (most sensitive first in float) [all where that is cheap].",
    ),
    click.option(
        "--sort",
        type=click.Choice(["sqnr", "cosine", "mse", "lsb", "score"]),
        help="Measure of the order [sqnr, or the score where there is one].",
    ),
    _options.score,
    _options.labels,
    click.option(
        "--min-sqnr",
        type=_options.Finite(),
        metavar="DB",
        help="Signal-to-noise ratio of the output that the list of nodes to exclude is to reach [20, or half of the noise].",
    ),
)
@_headings.under(
    "Output",
    click.option("--csv", type=_options.OUTPUT, help="Also write the table as CSV to this file."),
    _options.html,
    _options.as_json,
)
def run(
    float_model: Path,
    qdq_model: Path,
    samples: dict[str, Any],
    score: str | None,
    labels: Path | None,
    by: Literal["tensor", "layer"],
    ways: str | None,
    sort: Literal["sqnr", "cosine", "mse", "lsb", "score"] | None,
    min_sqnr: float | None,
    csv: Path | None,
    html: Path | None,
    as_json: bool,
) -> None:
    """Measure what each quantizer or layer costs, and name those to leave in float or to give more bits.

    FLOAT_MODEL and QDQ_MODEL are ONNX files, the second made from the first.

    Example: onnxqat profile model.onnx model.qdq.onnx --data images/ --csv layers.csv
    """
    _options.need("torch", "train")
    from onnxqat.cli import _output
    from onnxqat.graph import io
    from onnxqat.report import build, build_profile
    from onnxqat.validation.profile import profile

    with _options.progress("profile", quiet=as_json) as progress:
        found = profile(
            float_model,
            qdq_model,
            by=by,
            ways=None if ways is None else [way.strip() for way in ways.split(",")],  # type: ignore[misc]
            sort=sort,
            min_sqnr=min_sqnr,
            **samples,
            score=score,
            labels=labels,
            progress=progress,
        )
    report = build_profile.from_profile(found)
    if csv is not None:
        io.write_atomic(csv, build_profile.to_csv(found).encode("utf-8"))
        report = build.with_files(report, str(csv))
    _output.show(report, as_json=as_json, html_path=html)
