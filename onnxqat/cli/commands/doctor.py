"""``onnxqat doctor``."""

from __future__ import annotations

from pathlib import Path

import click

from onnxqat.cli import _options


@click.command
@_options.html
@_options.as_json
def run(html: Path | None, as_json: bool) -> None:
    """Examine versions, processor, GPUs and compilers of this machine.

    Exits with status 1 where something keeps onnxqat from working.

    Example: onnxqat doctor
    """
    from onnxqat.cli import _output
    from onnxqat.diagnosis.doctor import examine
    from onnxqat.report.build_doctor import from_diagnosis

    _output.show(from_diagnosis(examine()), as_json=as_json, html_path=html)
