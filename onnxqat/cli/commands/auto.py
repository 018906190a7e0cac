"""``onnxqat auto``."""

from __future__ import annotations

from pathlib import Path

import click

from onnxqat.cli import _again, _options


@click.command
@click.argument("model", type=_options.PATH)
@click.option("--backend", default="onnxruntime-cpu", help="Backend table: a name, or a YAML file.")
@_options.data
@_options.preprocess
@click.option("-o", "--output", type=_options.FOLDER, help="Folder for the files [MODEL.auto].")
@click.option("--budget", default="10m", help="Time for all that is tried, as 90s, 10m or 1h.")
@click.option(
    "--target-drop",
    type=_options.Number(),
    help="Loss to accept [0.5 points of top-1; without labels 1 % other predictions; else an error of 3 % of the signal; of a score 0.01].",
)
@_options.score
@_options.labels
@_options.batch_size
@_options.limit
@_options.bits
@_options.exclude
@_options.include
@_options.exclude_op
@click.option("--observer", help="Try this range observer alone: minmax, percentile, entropy, mse, ...")
@_options.keep_io_types
@click.option("--seed", type=_options.SEED, default=0, help="Seed of training.")
@_options.device
@_options.as_json
def run(
    model: Path,
    backend: str,
    data: str | None,
    preprocess: str | None,
    output: Path | None,
    budget: str,
    target_drop: float | None,
    score: str | None,
    labels: Path | None,
    batch_size: int,
    limit: int | None,
    bits: str | None,
    exclude: tuple[str, ...],
    include: tuple[str, ...],
    exclude_op: tuple[str, ...],
    observer: str | None,
    keep_io_types: bool,
    seed: int,
    device: str | None,
    as_json: bool,
) -> None:
    """Go the whole way: calibrate, fine-tune where that is not enough, validate, hand off.

    MODEL is a float ONNX file.

    Tries what costs least first and stops once the loss on held-out samples is small enough; exit status 1 says that
    it is not within the budget, or that a proof failed.

    Example: onnxqat auto model.onnx --backend onnxruntime-cpu --data images/ --budget 10m
    """
    from onnxqat.auto import budget as budgets
    from onnxqat.auto.auto import auto
    from onnxqat.backends.selection import Overrides
    from onnxqat.cli import _output
    from onnxqat.graph import files_read
    from onnxqat.report import build, html
    from onnxqat.report.build_auto import from_auto
    from onnxqat.validation.remedies import Given

    weight_bits, activation_bits = _options.parse_bits(bits)
    overrides = Overrides(
        exclude=exclude,
        include=include,
        exclude_ops=exclude_op,
        weight_bits=weight_bits,
        activation_bits=activation_bits,
        observer=observer,
    )
    folder = output or _options.beside(model, ".auto")
    page = folder / "report.html"
    files_read.plan(page)
    with _options.phases(quiet=as_json) as progress:
        result = auto(
            model,
            backend,
            data=data,
            output=folder,
            preprocess=preprocess,
            batch_size=batch_size,
            limit=limit,
            budget=budgets.parse(budget),
            target_drop=target_drop,
            overrides=overrides,
            keep_io_types=keep_io_types,
            score=score,
            labels=labels,
            seed=seed,
            device=device,
            progress=progress,
        )
    given = Given(str(model), str(result.model), data, preprocess, target=backend)
    longer = _again.again(budget=f"{2 * budgets.parse(budget):g}s")
    report = from_auto(result, given, longer=longer)
    html.write_html(report, page)
    _output.show(build.with_files(report, str(page)), as_json=as_json)
