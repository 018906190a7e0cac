"""``onnxqat auto``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from onnxqat.cli import _options


@click.command
@click.argument("model", type=_options.PATH)
@click.option("--backend", default="onnxruntime-cpu", help="Backend table: a name, or a YAML file.")
@_options.data
@_options.preprocess
@click.option("-o", "--output", type=_options.FOLDER, help="Folder for the files [MODEL.auto].")
@click.option("--budget", default="10m", help="Time for what is tried: 90s, 10m, 1h.")
@click.option("--target-drop", type=float, help="What may be lost [0.5 points of top-1; see the documentation].")
@click.option("--score", help="Quality of an ONNX file, higher is better: package.module:function of a path.")
@_options.batch_size
@_options.limit
@click.option("--bits", help="Widths W,A of weights and activations: 2 to 8, or 16.")
@click.option("--exclude", multiple=True, help="Node or tensor name or glob to leave in float.")
@click.option("--include", multiple=True, help="Quantize only nodes that match.")
@click.option("--exclude-op", multiple=True, help="Operator type to leave in float.")
@click.option("--observer", help="Try this range observer alone.")
@_options.keep_io_types
@click.option("--seed", type=int, default=0, help="Of training.")
@click.option("--device", help="cpu or cuda [cuda where there is one].")
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
    from onnxqat.report import build, html
    from onnxqat.report.build_auto import from_auto

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
            score=None if score is None else _score(score),
            seed=seed,
            device=device,
            progress=progress,
        )
    report = from_auto(result)
    page = folder / "report.html"
    html.write_html(report, page)
    _output.show(build.with_files(report, str(page)), as_json=as_json)


def _score(text: str) -> Callable[[Path], float]:
    from onnxqat.calibration._sources import import_function

    function: Any = import_function(text)
    return lambda path: float(function(path))
