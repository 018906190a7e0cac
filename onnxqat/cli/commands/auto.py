"""``onnxqat auto``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from onnxqat.cli import _again, _config, _headings, _options, _report_page


@click.command(cls=_headings.Headed)
@click.argument("model", type=_options.PATH)
@_headings.under("Configuration", _config.plain)
@_headings.under(
    "Target and limits",
    click.option(
        "--backend",
        multiple=True,
        default=("onnxruntime-cpu",),
        show_default=True,
        help="Backend table of a target: a name, or a YAML file; repeat it for several.",
    ),
    click.option("--budget", default="10m", help="Time limit for all that is tried, as 90s, 10m or 1h."),
    click.option(
        "--target-drop",
        type=_options.Finite(),
        help="Largest accepted loss of accuracy [0.5 points of top-1; without labels 1 % changed predictions; else an error of"
        " 3 % of the signal; 0.01 of a score].",
    ),
)
@_headings.under(
    "Data",
    _options.data,
    _options.preprocess,
    _options.batch_size,
    _options.limit,
)
@_headings.under(
    "Accuracy",
    _options.score,
    _options.labels,
)
@_headings.under(
    "Quantization",
    _options.bits,
    _options.exclude,
    _options.include,
    _options.exclude_op,
    click.option("--observer", help="Only range observer to try: minmax, percentile, entropy, mse, ..."),
    _options.keep_io_types,
)
@_headings.under(
    "Training",
    click.option("--seed", type=_options.SEED, default=0, help="Random seed of training."),
    _options.device,
)
@_headings.under(
    "Output",
    click.option("-o", "--output", type=_options.FOLDER, help="Folder to write the files to [MODEL.auto]."),
    click.option("--restart", is_flag=True, help="Try everything anew, whatever an earlier run has left there."),
    _report_page.option,
    _options.as_json,
)
def run(
    model: Path,
    backend: tuple[str, ...],
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
    restart: bool,
    page: Path | None,
    as_json: bool,
) -> None:
    """Run the whole pipeline: calibrate, fine-tune where that is not enough, validate, hand off.

    MODEL is a float ONNX file.

    Tries what costs least first and stops once the loss on held-out samples is small enough; exit status 1 says that
    it is not within the budget, or that a proof failed. A run that was ended goes on where it was.

    Example: onnxqat auto model.onnx --backend onnxruntime-cpu --data images/ --budget 10m
    """
    from onnxqat.autotune import budget as budgets
    from onnxqat.autotune.several import auto_several
    from onnxqat.cli import _output
    from onnxqat.graph import files_read
    from onnxqat.placement.table_overrides import Overrides
    from onnxqat.report import build, html
    from onnxqat.report.build_auto import from_auto, from_several
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
    own_page = folder / "report.html"
    files_read.plan(own_page)
    with _options.phases(quiet=as_json) as progress:
        results = auto_several(
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
            restart=restart,
            progress=progress,
        )
    given = [Given(str(model), str(result.model), data, preprocess, target=result.backend) for result in results]
    longer = _again.again(budget=f"{2 * budgets.parse(budget):g}s")
    reports = [from_auto(result, known, longer=longer) for result, known in zip(results, given, strict=True)]
    report = reports[0] if len(reports) == 1 else from_several(results, reports)
    html.write_html(report, own_page)
    report = build.with_files(report, str(own_page))
    samples: dict[str, Any] = {"data": data, "preprocess": preprocess, "batch_size": batch_size}
    report = _report_page.write(page, results[0].model, report, float_model=model, **samples)
    _output.show(report, as_json=as_json)
