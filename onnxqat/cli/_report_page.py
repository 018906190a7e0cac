"""The interactive page of ``onnxqat report``, written by a command about the file that it made or judged."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onnxqat.cli import _options

if TYPE_CHECKING:
    from onnxqat.report.model import Report

option = click.option(
    "--report",
    "page",
    type=_options.OUTPUT,
    metavar="FILE",
    help="Also write the interactive page of `onnxqat report`, with this command's results, to this file.",
)


def write(page: Path | None, model: Any, found: Report, *, results: Sequence[Path] = (), **options: Any) -> Report:
    """Write the page about `model`, where one is asked for, and return `found` with its file among those written.

    Args:
        page: the file; None: nothing is written.
        model: path of the QDQ file.
        found: the command's report, which is joined where the page takes its kind.
        results: further files of results.
        options: of :func:`onnxqat.report.model_report.build.model_report`.

    Raises:
        QatError: what that function raises.
    """
    if page is None:
        return found
    from onnxqat.report import build, json
    from onnxqat.report.model_report.build import model_report
    from onnxqat.report.model_report.results_read import KINDS

    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder) / f"{found.kind}.json"
        own.write_text(json.dumps(found), encoding="utf-8")
        joined = [*([own] if found.kind in KINDS else []), *results]
        model_report(model, options.pop("data", None), results=joined, progress=_silent, **options).save(page)
    return build.with_files(found, str(page))


def _silent(done: int, total: int | None) -> None:
    """Show nothing: the command has shown its own progress."""
