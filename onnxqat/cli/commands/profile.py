"""``onnxqat profile``."""

from __future__ import annotations

from pathlib import Path

import click

from onnxqat.cli import _options


@click.command
@click.argument("float_model", type=_options.PATH)
@click.argument("qdq_model", type=_options.PATH)
@_options.data
@_options.preprocess
@_options.batch_size
@click.option("--limit", type=_options.COUNT, default=64, help="Largest number of samples to use.")
@_options.random_data
@_options.score
@_options.labels
@click.option("--csv", type=_options.OUTPUT, help="Also write the table as CSV to this file.")
@_options.html
@_options.as_json
def run(
    float_model: Path,
    qdq_model: Path,
    data: str | None,
    preprocess: str | None,
    batch_size: int,
    limit: int,
    random_data: bool,
    score: str | None,
    labels: Path | None,
    csv: Path | None,
    html: Path | None,
    as_json: bool,
) -> None:
    """Measure what each quantizer costs: alone at the output, and with all of them on at its own tensor.

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
            data,
            preprocess=preprocess,
            batch_size=batch_size,
            limit=limit,
            random_data=random_data,
            score=score,
            labels=labels,
            progress=progress,
        )
    report = build_profile.from_profile(found)
    if csv is not None:
        io.write_atomic(csv, build_profile.to_csv(found).encode("utf-8"))
        report = build.with_files(report, str(csv))
    _output.show(report, as_json=as_json, html_path=html)
