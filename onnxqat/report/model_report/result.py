"""A model report as an object: in ten lines, as HTML, as JSON, as a table."""

from __future__ import annotations

import html as escaping
import os
from pathlib import Path
from typing import Any, Literal

from onnxqat.graph import io
from onnxqat.printing import printable
from onnxqat.report.model_report import page, schema

NOTEBOOK_HEIGHT = 760


class ModelReport:
    """Facts on one quantized model.

    Attributes:
        content: the data model, which terminal, page and notebook show.
    """

    def __init__(self, content: schema.ModelReport) -> None:
        self.content = content

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values, as :func:`onnxqat.report.model_report.schema.json_schema` describes them."""
        return self.content.model_dump(mode="json")

    def to_json(self) -> str:
        """Return one JSON document."""
        return self.content.model_dump_json()

    def to_html(self) -> str:
        """Return the page: one document that needs nothing else."""
        return page.to_html(self.content)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page, or the JSON where the name ends in ``.json``; it appears whole or not at all.

        Raises:
            ModelError: ``output-not-writable``.
        """
        target = Path(path)
        text = self.to_json() if target.suffix == ".json" else self.to_html()
        io.write_atomic(target, text.encode("utf-8"))
        return target

    def to_rows(self, of: Literal["quantizers", "nodes", "variants"] = "quantizers") -> list[dict[str, Any]]:
        """Return one flat mapping per quantizer, node or model: what a table of them holds."""
        return [_flat(entry) for entry in getattr(self.content, of)]

    def to_frame(self, of: Literal["quantizers", "nodes", "variants"] = "quantizers") -> Any:
        """Return :meth:`to_rows` as a ``pandas.DataFrame``.

        Raises:
            UsageError: ``dependency-missing`` without pandas.
        """
        from onnxqat.report.frame import frame

        return frame(self.to_rows(of))

    def __str__(self) -> str:
        """Return the report in ten lines."""
        from onnxqat.report.build_model_report import summary

        return summary(self.content)

    def __repr__(self) -> str:
        found = self.content
        name = printable(found.title)
        return f"ModelReport({name!r}, {len(found.nodes)} nodes, {len(found.quantizers)} quantizers)"

    def _repr_html_(self) -> str:
        """Return the page in a frame of its own, whose script sees nothing of the notebook."""
        inner = escaping.escape(self.to_html(), quote=True)
        return (
            f'<iframe sandbox="allow-scripts" title="onnxqat report" width="100%" height="{NOTEBOOK_HEIGHT}" '
            f'frameborder="0" srcdoc="{inner}"></iframe>'
        )


def _flat(entry: schema.Part) -> dict[str, Any]:
    """Return the fields of `entry` that hold one value, those of its parts with their names in front."""
    found: dict[str, Any] = {}
    for key, value in entry:
        if isinstance(value, schema.Part):
            found.update({f"{key}_{inner}": each for inner, each in _flat(value).items()})
        elif isinstance(value, dict):
            found.update({f"{key}_{inner}": each for inner, each in value.items()})
        elif not isinstance(value, list):
            found[key] = value
    return found
