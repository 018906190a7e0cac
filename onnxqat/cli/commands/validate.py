"""``onnxqat validate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnxqat.cli import _options


def run(
    float_model: Annotated[Path, typer.Argument(help="Float ONNX file.")],
    qdq_model: Annotated[Path, typer.Argument(help="QDQ ONNX file made from it.")],
    data: _options.Data = None,
    preprocess: _options.PreprocessLine = None,
    batch_size: _options.BatchSize = 32,
    limit: _options.Limit = None,
    random_data: _options.RandomData = False,
    no_torch: Annotated[bool, typer.Option("--no-torch", help="Compare in onnxruntime only.")] = False,
    max_differing_top1: Annotated[
        int | None, typer.Option(help="Accepted between torch and onnxruntime [0.05 % + 2].", show_default=False)
    ] = None,
    max_differing_top1_default: Annotated[
        int | None, typer.Option(help="Accepted in onnxruntime's default session [0.15 % + 2].", show_default=False)
    ] = None,
    html: _options.Html = None,
    as_json: _options.Json = False,
) -> None:
    """Prove that a QDQ file computes what was trained: accuracy, parity in steps, noise per tensor.

    Leaves with status 1 when a check fails.

    Example: onnxqat validate model.onnx tuned.qdq.onnx --data images/
    """
    from onnxqat.cli import _output
    from onnxqat.report import build
    from onnxqat.validation.validate import validate

    with _options.progress("validate", quiet=as_json) as progress:
        report = validate(
            float_model,
            qdq_model,
            data,
            preprocess=preprocess,
            batch_size=batch_size,
            limit=limit,
            random_data=random_data,
            use_torch=not no_torch,
            max_differing_top1=max_differing_top1,
            max_differing_top1_default=max_differing_top1_default,
            progress=progress,
        )
    _output.show(build.from_validation(report), as_json=as_json, html_path=html)
