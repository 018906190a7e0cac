"""``onnxqat mixed-precision``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from onnxqat.cli import _headings, _options


@click.command(cls=_headings.Headed)
@click.argument("model", type=_options.PATH)
@_headings.under(
    "Target",
    click.option("--backend", default="onnxruntime-cpu", help="Backend table of the target: a name, or a YAML file."),
)
@_headings.under(
    "Data",
    click.option("-c", "--calibration", "--data", "calibration", help=_options.DATA_HELP),
    click.option("--held-out", metavar="DATA", help="Samples to measure the file on [64 of the calibration data]."),
    _options.preprocess,
    _options.largest_batch,
    _options.limit,
)
@_headings.under(
    "Budget, one of them",
    click.option("--weight-bytes", metavar="AMOUNT", help="Bytes of the weights: 1.2MB, or 50% of those at 8 bits."),
    click.option(
        "--multiply-bits",
        metavar="AMOUNT",
        help="Multiplications of a sample times both widths: 3G, or 60% of those at 8 bits.",
    ),
    click.option(
        "--integer-share", metavar="SHARE", help="Smallest share of the multiplications that is on integers: 90%."
    ),
    click.option(
        "--latency",
        metavar="AMOUNT",
        help="Time of a sample in the backend's runtime on one thread: 4ms, or 60% of the float model's.",
    ),
    click.option(
        "--min-sqnr", type=_options.Finite(), metavar="DB", help="Lowest signal-to-noise ratio of the outputs."
    ),
    click.option(
        "--max-drop", type=_options.NOT_NEGATIVE, metavar="POINTS", help="Largest loss of the score, in its unit."
    ),
    click.option(
        "--minimize",
        type=click.Choice(["weight-bytes", "multiply-bits", "float-multiplications", "latency"]),
        default="weight-bytes",
        help="Cost that the last two keep low.",
    ),
)
@_headings.under(
    "Widths",
    click.option("--widths", metavar="BITS,...", help="Widths of weights to choose from [what the table can mix]."),
    click.option("--allow-float", is_flag=True, help="Let layers stay in float too."),
    _options.exclude,
    _options.exclude_op,
    click.option(
        "--bits-of",
        multiple=True,
        metavar="PATTERN=W,A",
        help="Bit widths of nodes that are not chosen for; repeat it.",
    ),
)
@_headings.under(
    "Accuracy",
    click.option(
        "--noise",
        type=click.Choice(["auto", "measured", "gradient"]),
        default="auto",
        help="Noise of layers: measured one by one, from gradients of all at once, or what is cheap.",
    ),
    click.option("--samples", type=_options.COUNT, default=32, help="Number of samples for that."),
    click.option(
        "--rounding",
        type=click.Choice(["auto", "nearest", "gptq", "compensated"]),
        default="auto",
        help="Rounding of weights in the file, as of insert-qdq.",
    ),
    _options.score,
    _options.labels,
)
@_headings.under(
    "Output",
    click.option("-o", "--output", type=_options.OUTPUT, help="File to write [MODEL.qdq.onnx]."),
    click.option("--csv", type=_options.OUTPUT, help="Also write the Pareto front as CSV to this file."),
    _options.html,
    _options.as_json,
)
def run(
    model: Path,
    backend: str,
    calibration: str | None,
    held_out: str | None,
    preprocess: str | None,
    batch_size: int,
    limit: int | None,
    weight_bytes: str | None,
    multiply_bits: str | None,
    integer_share: str | None,
    latency: str | None,
    min_sqnr: float | None,
    max_drop: float | None,
    minimize: Literal["weight-bytes", "multiply-bits", "float-multiplications", "latency"],
    widths: str | None,
    allow_float: bool,
    exclude: tuple[str, ...],
    exclude_op: tuple[str, ...],
    bits_of: tuple[str, ...],
    noise: Literal["auto", "measured", "gradient"],
    samples: int,
    rounding: Literal["auto", "nearest", "gptq", "compensated"],
    score: str | None,
    labels: Path | None,
    output: Path | None,
    csv: Path | None,
    html: Path | None,
    as_json: bool,
) -> None:
    """Choose bit widths layer by layer within a budget, and write the QDQ file.

    MODEL is a float ONNX file.

    Example: onnxqat mixed-precision model.onnx --backend qnn-htp-w4 --data images/ --weight-bytes 60%
    """
    _options.need("torch", "train")
    from onnxqat.bit_allocation.budget import Budget
    from onnxqat.bit_allocation.mixed_precision import mixed_precision
    from onnxqat.cli import _output
    from onnxqat.graph import io
    from onnxqat.placement.table_overrides import Overrides
    from onnxqat.report import build, build_mixed_precision
    from onnxqat.report.following import validate

    with _options.progress("noise of layers", quiet=as_json) as progress:
        found = mixed_precision(
            model,
            backend,
            calibration,
            Budget(weight_bytes, multiply_bits, min_sqnr, max_drop, minimize, integer_share, latency),
            output=output,
            held_out=held_out,
            overrides=Overrides(exclude=exclude, exclude_ops=exclude_op, node_bits=_options.parse_bits_of(bits_of)),
            widths=_options.parse_widths(widths),
            allow_float=allow_float,
            method=noise,
            samples=samples,
            rounding=rounding,
            preprocess=preprocess,
            batch_size=batch_size,
            limit=limit,
            score=score,
            labels=labels,
            progress=progress,
        )
    following = validate(model, str(found.model), original=str(model), data=held_out, preprocess=preprocess)
    report = build_mixed_precision.from_mixed_precision(found, following=following)
    if csv is not None:
        io.write_atomic(csv, build_mixed_precision.to_csv(found).encode("utf-8"))
        report = build.with_files(report, str(csv))
    _output.show(report, as_json=as_json, html_path=html)
