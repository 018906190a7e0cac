"""A report as one HTML file: no script, nothing loaded from elsewhere, light and dark."""

from __future__ import annotations

import os
from pathlib import Path

import jinja2

from onnxqat.graph import io
from onnxqat.printing import printable
from onnxqat.report.model import Report, filled, grouped, shown

_TEMPLATES = Path(__file__).parent / "templates"


def to_html(report: Report) -> str:
    """The page. Everything in it is escaped: names in a model may be anything."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template = environment.get_template("report.html.j2")
    return template.render(
        report=report, shown=shown, filled=filled, printable=printable, left_float=grouped(report.left_float or ())
    )


def write_html(report: Report, path: str | os.PathLike[str]) -> Path:
    """Write the page; it appears whole or not at all.

    Raises:
        ModelError: ``output-not-writable``.
    """
    io.write_atomic(Path(path), to_html(report).encode("utf-8"))
    return Path(path)
