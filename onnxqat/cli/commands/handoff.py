"""``onnxqat handoff``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnxqat.cli import _options


def run(
    model: Annotated[Path, typer.Argument(help="QDQ ONNX file.")],
    backend: Annotated[str, typer.Option(help="onnxruntime-cpu or openvino-cpu.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Bundle folder to write.")],
    data: _options.Data = None,
    preprocess: _options.PreprocessLine = None,
    samples: Annotated[int, typer.Option(help="Samples to run through the compiled model.")] = 16,
    max_steps: Annotated[float, typer.Option(help="Largest accepted difference in output steps.")] = 2.0,
    timeout: Annotated[float, typer.Option(help="Seconds after which the compiler is stopped.")] = 300.0,
    html: _options.Html = None,
    as_json: _options.Json = False,
) -> None:
    """Make the deploy form, compile it for real and show what runs in integers.

    Leaves with status 1 when the compiled model differs from the reference.

    Example: onnxqat handoff tuned.qdq.onnx --backend openvino-cpu -o bundle/
    """
    from onnxqat.cli import _output
    from onnxqat.handoff.handoff import handoff
    from onnxqat.report import build

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
    _output.show(build.from_handoff(report), as_json=as_json, html_path=html)
