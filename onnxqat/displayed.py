"""Results that show themselves: in ten lines, as HTML in a notebook, as a data frame, as a file."""

from __future__ import annotations

import html as escaping
import importlib
import os
from pathlib import Path
from typing import Any, ClassVar

HEIGHT = 480
"""Pixels of a frame in a notebook."""


class Displayed:
    """A result of a public function, with the views of its command.

    Attributes:
        displayed_by: ``module:function`` that builds its report, imported where a view is asked for.
    """

    displayed_by: ClassVar[str]

    def to_report(self) -> Any:
        """Return the :class:`onnxqat.report.model.Report` that the command prints."""
        module, _, function = self.displayed_by.partition(":")
        return getattr(importlib.import_module(module), function)(self)

    def __str__(self) -> str:
        """Return verdicts and key figures in ten lines at most."""
        found: str = _views("brief").brief(self.to_report())
        return found

    def to_html(self) -> str:
        """Return the page that the command writes with ``--html``."""
        found: str = _views("html").to_html(self.to_report())
        return found

    def save_html(self, path: str | os.PathLike[str]) -> Path:
        """Write :meth:`to_html`; it appears whole or not at all.

        Raises:
            ModelError: ``output-not-writable``.
        """
        written: Path = _views("html").write_html(self.to_report(), path)
        return written

    def to_frame(self, table: str | None = None) -> Any:
        """Return a table of the report as a ``pandas.DataFrame``.

        Args:
            table: its key, as in the command's JSON; None: the first one that has rows.

        Raises:
            UsageError: ``dependency-missing`` without pandas; ``name-unknown``: there is no such table.
        """
        frames = _views("frame")
        return frames.frame(frames.rows(self.to_report(), table))

    def _repr_html_(self) -> str:
        """Return the page in a frame that runs no script and whose style does not reach the notebook."""
        inner = escaping.escape(self.to_html(), quote=True)
        return f'<iframe sandbox title="onnxqat result" width="100%" height="{HEIGHT}" frameborder="0" srcdoc="{inner}"></iframe>'


def _views(name: str) -> Any:
    # The views lie in a layer above the results, and jinja2 and rich are not loaded before one is asked for.
    return importlib.import_module(f"onnxqat.report.{name}")
