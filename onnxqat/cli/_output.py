"""Output of a command's report."""

from __future__ import annotations

from pathlib import Path

import click

from onnxqat import printing
from onnxqat.cli import _verbose
from onnxqat.report.model import Report


def show(report: Report, *, as_json: bool, html_path: Path | None = None) -> None:
    """Print `report`, write the HTML view where asked for, and leave with status 1 when a check failed."""
    if html_path is not None:
        from onnxqat.report import build, html

        html.write_html(report, html_path)
        report = build.with_files(report, str(html_path))
    if as_json:
        from onnxqat.report import json

        printing.echo(json.dumps(report))
    else:
        from onnxqat.report import terminal

        terminal.show(report, details=_verbose.asked())
    if report.passed is False:
        click.get_current_context().exit(1)
