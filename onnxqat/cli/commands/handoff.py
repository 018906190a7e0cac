"""``onnxqat handoff``."""

from __future__ import annotations

from pathlib import Path

import click

from onnxqat.cli import _options


@click.command
@click.argument("model", type=_options.PATH)
@click.option("--backend", required=True, help="onnxruntime-cpu or openvino-cpu.")
@click.option("-o", "--output", type=_options.PATH, required=True, help="Bundle folder to write.")
@_options.data
@_options.preprocess
@click.option("--samples", type=int, default=16, help="Samples to run through the compiled model.")
@click.option("--max-steps", type=float, default=2.0, help="Largest accepted difference in output steps.")
@click.option("--timeout", type=float, default=300.0, help="Seconds after which the compiler is stopped.")
@_options.html
@_options.as_json
def run(
    model: Path,
    backend: str,
    output: Path,
    data: str | None,
    preprocess: str | None,
    samples: int,
    max_steps: float,
    timeout: float,
    html: Path | None,
    as_json: bool,
) -> None:
    """Make the deploy form, compile it for real and show what runs in integers.

    MODEL is a QDQ ONNX file. Leaves with status 1 when the compiled model differs from the reference.

    Example: onnxqat handoff tuned.qdq.onnx --backend openvino-cpu -o bundle/
    """
    from onnxqat.cli import _output
    from onnxqat.handoff.handoff import handoff
    from onnxqat.report import build_handoff

    with _options.progress("hand off", quiet=as_json) as progress:
        report = handoff(
            model,
            backend,
            output,
            data=data,
            preprocess=preprocess,
            samples=samples,
            max_steps=max_steps,
            timeout=timeout,
            progress=progress,
        )
    _output.show(build_handoff.from_handoff(report), as_json=as_json, html_path=html)
