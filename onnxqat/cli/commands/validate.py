"""``onnxqat validate``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from onnxqat.cli import _headings, _options, _report_page

PAGE_SAMPLES = 64
"""Samples whose histograms and noise are on the page, as `onnxqat report` takes by itself."""


@click.command(cls=_headings.Headed)
@click.argument("float_model", type=_options.PATH)
@click.argument("qdq_model", type=_options.PATH)
@_headings.under("Data", _options.samples(None))
@_headings.under(
    "Accuracy",
    _options.scores,
    _options.labels,
    _options.accuracy_limits,
)
@_headings.under(
    "Runtimes",
    click.option("--no-torch", is_flag=True, help="Compare in onnxruntime only; needs no torch."),
    click.option(
        "--max-differing-top1",
        type=int,
        metavar="N",
        help="Number of predictions in which torch and onnxruntime may differ [0.05 % of the samples + 2].",
    ),
    click.option(
        "--max-differing-top1-default",
        type=int,
        metavar="N",
        help="Number of predictions in which torch and onnxruntime's default session, which fuses operators, may differ [0.15 % of the samples + 2].",
    ),
    click.option("--backend", help="Backend table that the file is to be deployed with [the one that it names]."),
)
@_headings.under(
    "Output",
    click.option(
        "--prove",
        type=_options.OUTPUT,
        metavar="FILE",
        help="JSON file for proofs about widths: accumulators, shifts, stages of integer functions.",
    ),
    _options.html,
    _report_page.option,
    _options.as_json,
)
def run(
    float_model: Path,
    qdq_model: Path,
    samples: dict[str, Any],
    scores: tuple[str, ...],
    labels: Path | None,
    no_torch: bool,
    max_differing_top1: int | None,
    max_differing_top1_default: int | None,
    limits: dict[str, Any],
    backend: str | None,
    prove: Path | None,
    html: Path | None,
    page: Path | None,
    as_json: bool,
) -> None:
    """Judge a QDQ file: parity of torch and onnxruntime, accuracy against the float model, deployment.

    FLOAT_MODEL and QDQ_MODEL are ONNX files, the second made from the first. Leaves with status 1 when a verdict is red.

    Example: onnxqat validate model.onnx tuned.qdq.onnx --data images/
    """
    from onnxqat.cli import _output
    from onnxqat.report import build_validation
    from onnxqat.validation.validate import validate

    with _options.progress("validate", quiet=as_json) as progress:
        report = validate(
            float_model,
            qdq_model,
            **samples,
            score=scores,
            labels=labels,
            use_torch=not no_torch,
            max_differing_top1=max_differing_top1,
            max_differing_top1_default=max_differing_top1_default,
            **limits,
            backend=backend,
            progress=progress,
        )
    shown = build_validation.from_validation(report)
    if prove is not None:
        from onnxqat.report import build_proof
        from onnxqat.validation.prove import SAMPLES
        from onnxqat.validation.prove import prove as proved

        proof = proved(
            qdq_model,
            float_model=float_model,
            output=prove,
            **samples | {"limit": min(samples["limit"] or SAMPLES, SAMPLES)},
            use_torch=not no_torch,
        )
        shown = build_proof.joined(shown, proof, prove)
    shown = _report_page.write(page, qdq_model, shown, float_model=float_model, **_few(samples))
    _output.show(shown, as_json=as_json, html_path=html)


def _few(samples: dict[str, Any]) -> dict[str, Any]:
    """Return the options of the samples for a page, which shows no more of a few dozen than of all."""
    limit = min(samples["limit"] or PAGE_SAMPLES, PAGE_SAMPLES)
    return {**{name: value for name, value in samples.items() if value is not None}, "limit": limit}
