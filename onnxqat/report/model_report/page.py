"""A model report as one HTML file: nothing is fetched, and no script but its own runs."""

from __future__ import annotations

import base64
import functools
import hashlib
from pathlib import Path

import jinja2

from onnxqat.printing import printable
from onnxqat.report.model_report import schema

TEMPLATES = Path(__file__).parent.parent / "templates"
SCRIPTS = ("core", "layout", "graph", "controls", "charts", "tables", "detail", "sections", "start")
"""Parts of the script, in the order in which they run."""


def to_html(report: schema.ModelReport) -> str:
    """Return the page. Names in a model may be anything: in the markup they are escaped, in the script they are data."""
    style, script = style_text(), script_text()
    policy = (
        "default-src 'none'; "
        f"script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "img-src 'none'; connect-src 'none'; font-src 'none'; object-src 'none'; base-uri 'none'; form-action 'none'"
    )
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("model_report.html.j2").render(
        title=printable(report.title),
        printable=printable,
        report=report,
        policy=policy,
        style=style,
        script=script,
        content=data_text(report),
    )


def data_text(report: schema.ModelReport) -> str:
    """Return the data as JSON that can stand inside a ``script`` element: no ``<`` in it ends or begins a tag."""
    text = report.model_dump_json(exclude_defaults=True)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


@functools.cache
def style_text() -> str:
    """Return the style sheet."""
    return "\n" + (TEMPLATES / "model_report.css").read_text(encoding="utf-8")


@functools.cache
def script_text() -> str:
    """Return the script: all parts in one function, so that they share names and leave none behind."""
    parts = [(TEMPLATES / f"model_report_{name}.js").read_text(encoding="utf-8") for name in SCRIPTS]
    return '\n"use strict";\n(() => {\n' + "\n".join(parts) + "\n})();\n"


def _hash(text: str) -> str:
    """Return the source expression of an inline script or style (Content Security Policy level 3, section 8.3)."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
